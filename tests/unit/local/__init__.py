# SPDX-License-Identifier: Apache-2.0
"""Tests of the local mode that need no service."""

from __future__ import annotations
