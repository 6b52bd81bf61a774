# SPDX-License-Identifier: Apache-2.0
"""Measurements, as ratios within one run."""

from __future__ import annotations
