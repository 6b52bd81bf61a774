# SPDX-License-Identifier: Apache-2.0
"""Embedded broker and embedded cluster for the demo and for tests."""

from __future__ import annotations
