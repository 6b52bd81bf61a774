# SPDX-License-Identifier: Apache-2.0
"""Tests of the pure parts of the tour."""

from __future__ import annotations
