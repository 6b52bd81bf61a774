# SPDX-License-Identifier: Apache-2.0
"""The metadata database of this test process: migrate it as Airflow does, and empty it between tests."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from starlette.testclient import TestClient

# Filled by the migration and never by a test.
_KEPT_TABLES = frozenset({"log_template", "slot_pool"})


def migrate() -> None:
    """Do what ``airflow db migrate`` does, the database managers of providers included."""
    from airflow.utils.db import upgradedb

    upgradedb()


def dispose() -> None:
    """Close the pooled connections of this process."""
    from airflow import settings

    settings.dispose_orm(do_log=False)


def close_connections_of_loop(client: TestClient) -> None:
    """Close the connections of a client's event loop: Airflow 3.4 pools them, and no other loop can use them.

    :param client: a client that was entered, so that it has a loop of its own
    """
    from airflow import settings

    if settings.async_engine is not None and client.portal is not None:
        client.portal.call(settings.async_engine.dispose)


def empty() -> None:
    """Delete every row that a test may have written, ours included; the schema stays."""
    from airflow import settings

    with settings.get_engine().begin() as connection:
        for metadata in _metadata_collections():
            for table in reversed(metadata.sorted_tables):
                if table.name not in _KEPT_TABLES:
                    connection.execute(table.delete())


@cache
def _metadata_collections() -> tuple[MetaData, ...]:
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.providers_manager import ProvidersManager

    import_all_models()
    managers = [resolve_name(path) for path in ProvidersManager().db_managers]
    return (Base.metadata, *(manager.metadata for manager in managers))
