# SPDX-License-Identifier: Apache-2.0
"""Integration tests."""

from __future__ import annotations
