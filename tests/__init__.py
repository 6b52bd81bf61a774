# SPDX-License-Identifier: Apache-2.0
"""Tests of the dispatcher, and what they share."""

from __future__ import annotations
