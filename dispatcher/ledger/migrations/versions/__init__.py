# SPDX-License-Identifier: Apache-2.0
"""Revisions of the ledger, oldest first."""

from __future__ import annotations
