# SPDX-License-Identifier: Apache-2.0
"""Unit tests of the pure decisions."""

from __future__ import annotations
