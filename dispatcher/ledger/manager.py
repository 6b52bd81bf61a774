# SPDX-License-Identifier: Apache-2.0
"""The DB manager that lets ``airflow db migrate`` create and upgrade the ledger's table."""

from __future__ import annotations

from pathlib import Path

from airflow.utils.db import DBLocks, create_global_lock
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

    def downgrade(
        self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False
    ) -> None:
        """Take the table back to an older revision.

        :param to_revision: the Alembic revision to go to, or ``base`` for no table
        :param from_revision: where to start from; only with ``show_sql_only``
        :param show_sql_only: print the SQL instead of running it
        :raises ValueError: ``from_revision`` without ``show_sql_only``
        """
        from alembic import command

        if from_revision and not show_sql_only:
            raise ValueError(
                "from_revision needs show_sql_only: a downgrade starts from the present revision"
            )
        config = self.get_alembic_config()  # type: ignore[no-untyped-call]
        if show_sql_only:
            start = from_revision or self.get_current_revision()  # type: ignore[no-untyped-call]
            command.downgrade(config, f"{start}:{to_revision}", sql=True)
            return
        with create_global_lock(self.session, lock=DBLocks.MIGRATIONS):
            command.downgrade(config, to_revision)
