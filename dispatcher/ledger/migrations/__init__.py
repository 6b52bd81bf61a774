# SPDX-License-Identifier: Apache-2.0
"""Alembic's environment and revisions of the ledger."""

from __future__ import annotations
