# SPDX-License-Identifier: Apache-2.0
"""The Airflow environment of this test process: a home and a metadata database of its own.

Airflow reads its configuration when it is imported, so ``prepare`` runs before that. Child processes inherit
the same environment and so talk to the same database.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

DATABASE_VARIABLE = "DISPATCHER_TESTS_DATABASE"
"""Which kind of metadata database to run on: ``sqlite`` (the default) or ``postgres``."""

EXECUTOR = "dispatcher.executor.HybridExecutor"


@dataclass(frozen=True)
class AirflowEnvironment:
    """Where this test process keeps its Airflow.

    :param home: Airflow's home, a temporary directory.
    :param database: kind of metadata database, ``sqlite`` or ``postgres``.
    :param server_url: for PostgreSQL the URL of the server's maintenance database, else ``None``.
    :param database_name: for PostgreSQL the name of the database of this process, else ``None``.
    """

    home: Path
    database: str
    server_url: str | None
    database_name: str | None

    def create_database(self) -> None:
        """Create the empty PostgreSQL database; SQLite makes its file by itself."""
        self._administer('CREATE DATABASE "{}"')

    def drop_database(self) -> None:
        """Drop the PostgreSQL database, whoever is still connected."""
        self._administer('DROP DATABASE IF EXISTS "{}" WITH (FORCE)')

    def remove(self) -> None:
        """Remove the home directory, and with it a SQLite database."""
        shutil.rmtree(self.home, ignore_errors=True)

    def _administer(self, statement: str) -> None:
        if self.server_url is None or self.database_name is None:
            return
        from sqlalchemy import create_engine, text
        from sqlalchemy.pool import NullPool

        engine = create_engine(self.server_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text(statement.format(self.database_name)))
        engine.dispose()


def prepare() -> AirflowEnvironment:
    """Set the environment variables of an isolated Airflow; nothing is connected to yet.

    :raises pytest.UsageError: Airflow is imported already, or the database asked for is not to be had.
    """
    if "airflow" in sys.modules:
        raise pytest.UsageError("Airflow was imported before the tests could set its environment")
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]  # a developer's own Airflow must not leak in

    home = Path(tempfile.mkdtemp(prefix="dispatcher-tests-"))
    for folder in ("dags", "plugins"):
        (home / folder).mkdir()
    database = os.environ.get(DATABASE_VARIABLE, "sqlite")
    if database == "sqlite":
        environment = AirflowEnvironment(home, database, None, None)
        _export_database(f"sqlite:///{home / 'airflow.db'}", f"sqlite+aiosqlite:///{home / 'airflow.db'}")
    elif database == "postgres":
        environment = _prepare_postgres(home)
    else:
        raise pytest.UsageError(f"{DATABASE_VARIABLE} is {database!r}; it must be sqlite or postgres")
    os.environ.update(
        {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__EXECUTOR": EXECUTOR,
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            # On Airflow 3.4 a task that is told to stop is killed after this time, of a minute by default.
            "AIRFLOW__CORE__KILLED_TASK_CLEANUP_TIME": "5",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
        }
    )
    return environment


def _prepare_postgres(home: Path) -> AirflowEnvironment:
    from sqlalchemy.engine import make_url

    server = os.environ.get("POSTGRES_URL")
    if not server:
        raise pytest.UsageError(f"{DATABASE_VARIABLE}=postgres needs POSTGRES_URL, the URL of a server")
    url = make_url(server)
    name = f"dispatcher_test_{secrets.token_hex(4)}"
    own = url.set(database=name)
    _export_database(
        own.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False),
        own.set(drivername="postgresql+asyncpg").render_as_string(hide_password=False),
    )
    return AirflowEnvironment(home, "postgres", server, name)


def _export_database(sync_url: str, async_url: str) -> None:
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = sync_url
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = async_url
