# SPDX-License-Identifier: Apache-2.0
"""Example DAGs, and the plain functions that they call."""

from __future__ import annotations
