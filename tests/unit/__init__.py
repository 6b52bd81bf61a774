# SPDX-License-Identifier: Apache-2.0
"""Unit tests."""

from __future__ import annotations
