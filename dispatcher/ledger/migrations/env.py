# SPDX-License-Identifier: Apache-2.0
"""Run the ledger's migrations on Airflow's engine, with a version table of their own."""

from __future__ import annotations

from airflow import settings
from alembic import context

from dispatcher.ledger.manager import DispatcherDBManager

target_metadata = DispatcherDBManager.metadata
version_table = DispatcherDBManager.version_table_name


def include_object(_: object, name: str | None, type_: str, *_args: object) -> bool:
    """Look at the ledger's own tables only: the database also holds Airflow's."""
    return type_ != "table" or name in target_metadata.tables


def run_migrations_offline() -> None:
    """Write the SQL instead of running it."""
    context.configure(
        url=settings.SQL_ALCHEMY_CONN,
        target_metadata=target_metadata,
        literal_binds=True,
        version_table=version_table,
        include_object=include_object,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_migrations_online() -> None:
    """Run on a connection of Airflow's engine."""
    with settings.get_engine().connect() as connection:  # type: ignore[no-untyped-call]
        context.configure(
            connection=connection,
            target_metadata=target_metadata,
            version_table=version_table,
            include_object=include_object,
            compare_type=True,
            compare_server_default=True,
            render_as_batch=True,
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_migrations_offline()
else:
    run_migrations_online()
