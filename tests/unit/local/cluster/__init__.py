# SPDX-License-Identifier: Apache-2.0
"""Tests of the embedded cluster's parts, without its process."""

from __future__ import annotations
