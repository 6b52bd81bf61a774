# SPDX-License-Identifier: Apache-2.0
"""The DB manager that lets ``airflow db migrate`` create and upgrade the ledger's table."""

from __future__ import annotations

from pathlib import Path

from airflow.utils.db_manager import BaseDBManager

from dispatcher.ledger.models import LedgerBase

_HERE = Path(__file__).parent


class DispatcherDBManager(BaseDBManager):
    """Owns ``dispatcher_launch``, with an Alembic version table of its own."""

    metadata = LedgerBase.metadata
    version_table_name = "alembic_version_dispatcher"
    migration_dir = (_HERE / "migrations").as_posix()
    alembic_file = (_HERE / "alembic.ini").as_posix()
    supports_table_dropping = True
    revision_heads_map = {"0.1.0": "0001"}  # noqa: RUF012 - the base class declares a plain attribute
