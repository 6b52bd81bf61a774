# SPDX-License-Identifier: Apache-2.0
"""Tests of the local mode's processes."""

from __future__ import annotations
