# SPDX-License-Identifier: Apache-2.0
"""Whole systems: every component is a real process."""

from __future__ import annotations
