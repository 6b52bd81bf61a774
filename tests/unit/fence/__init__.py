# SPDX-License-Identifier: Apache-2.0
"""Tests of the fence's pure parts."""

from __future__ import annotations
