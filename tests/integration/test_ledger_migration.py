# SPDX-License-Identifier: Apache-2.0
"""The table of launches is made by ``airflow db migrate``, and its migrations make what the model says."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from importlib import import_module
from io import StringIO

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import MetaData, create_engine, inspect, text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateIndex, CreateTable

from dispatcher.domain.errors import LedgerMissingError
from dispatcher.ledger.check import require_ledger
from dispatcher.ledger.manager import DispatcherDBManager
from dispatcher.ledger.models import LaunchRow, LedgerBase
from tests.support.commands import run_airflow, run_airflow_commands

TABLE = "dispatcher_launch"
VERSION_TABLE = "alembic_version_dispatcher"
OURS = {TABLE, VERSION_TABLE}
MIGRATION = "dispatcher.ledger.migrations.versions.0001_create_launch_table"
MYSQL_INDEX_BYTES = 3072
MYSQL_BYTES_PER_CHARACTER = 4


@contextmanager
def _fresh_database(kind, home):
    """Yield the URL of an empty database of its own."""
    if kind == "sqlite":
        yield make_url(f"sqlite:///{home / 'fresh.db'}")
        return
    server = make_url(os.environ["POSTGRES_URL"])
    name = f"dispatcher_test_{secrets.token_hex(4)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
        try:
            yield server.set(database=name)
        finally:
            connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


def _environment(url):
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}[url.get_backend_name()]
    return {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url.render_as_string(hide_password=False),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": url.set(drivername=driver).render_as_string(
            hide_password=False
        ),
    }


def _assert_done(done):
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def test_airflow_db_commands_make_the_table(kind, tmp_path):
    """On a fresh database, on one that has Airflow's tables only, and after a reset."""
    with _fresh_database(kind, tmp_path) as url:
        env = _environment(url)
        engine = create_engine(url, poolclass=NullPool)
        _assert_done(run_airflow("db", "migrate", home=tmp_path, env=env))
        assert set(inspect(engine).get_table_names()) >= OURS | {"task_instance"}

        with engine.begin() as connection:
            for table in OURS:
                connection.execute(text(f"DROP TABLE {table}"))
        commands = ("db migrate", "db check-migrations -t 0")
        _assert_done(run_airflow_commands(*commands, home=tmp_path, env=env))
        assert set(inspect(engine).get_table_names()) >= OURS

        with engine.begin() as connection:
            connection.execute(text(f"DELETE FROM {VERSION_TABLE}"))
        commands = ("db reset -y", "db check-migrations -t 0")
        _assert_done(run_airflow_commands(*commands, home=tmp_path, env=env))
        with engine.connect() as connection:
            assert connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")) == "0001"
            assert connection.scalar(text(f"SELECT count(*) FROM {TABLE}")) == 0


@pytest.fixture
def manager(db_session):
    """Yield the DB manager on this run's database, which has the table again at the end."""
    manager = DispatcherDBManager(db_session)
    yield manager
    _drop(manager)
    manager.initdb()
    db_session.rollback()


def _drop(manager):
    manager.session.rollback()  # what it has read, it has locked
    with manager.session.get_bind().begin() as connection:
        manager.drop_tables(connection)
    manager.session.rollback()


def _shape(engine):
    """Return all that the database knows of the table, in a form that compares."""
    inspector = inspect(engine)
    columns = [
        {**column, "type": column["type"].compile(engine.dialect)} for column in inspector.get_columns(TABLE)
    ]
    indexes = sorted(inspector.get_indexes(TABLE), key=lambda index: index["name"])
    return columns, indexes, inspector.get_pk_constraint(TABLE), inspector.get_unique_constraints(TABLE)


def test_migrations_make_what_the_model_makes(manager, db_session):
    engine = db_session.get_bind()
    _drop(manager)
    manager.initdb()
    from_model = _shape(engine)
    _drop(manager)
    manager.initdb(use_migration_files=True)
    assert _shape(engine) == from_model
    assert manager.check_migration()


def test_alembic_finds_no_difference_after_the_migrations(manager, db_session):
    _drop(manager)
    manager.initdb(use_migration_files=True)
    with db_session.get_bind().connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
                "include_object": lambda _object, name, kind, *_: kind != "table" or name == TABLE,
            },
        )
        assert compare_metadata(context, LedgerBase.metadata) == []


def test_alembic_would_find_a_difference(manager, db_session):
    """The comparison of the test before this one looks at indexes too."""
    with db_session.get_bind().connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_object": lambda _object, name, kind, *_: kind != "table" or name == TABLE},
        )
        metadata = MetaData()
        table = LaunchRow.__table__.to_metadata(metadata)
        table.indexes.remove(next(index for index in table.indexes if index.name.endswith("_owner")))
        assert [difference[0] for difference in compare_metadata(context, metadata)] == ["remove_index"]


def test_the_head_is_what_this_version_names(manager):
    heads = manager.get_script_object().get_heads()
    assert heads == [list(DispatcherDBManager.revision_heads_map.values())[-1]]


def test_downgrade_takes_the_table_away_and_migrate_brings_it_back(manager, db_session):
    manager.downgrade("base")
    assert TABLE not in inspect(db_session.get_bind()).get_table_names()
    db_session.rollback()
    manager.initdb()
    assert TABLE in inspect(db_session.get_bind()).get_table_names()


def test_downgrade_prints_sql_instead(manager, db_session, capsys):
    manager.downgrade("base", show_sql_only=True)
    assert f"DROP TABLE {TABLE};" in capsys.readouterr().out
    assert TABLE in inspect(db_session.get_bind()).get_table_names()


def test_downgrade_starts_from_the_present_revision(manager):
    with pytest.raises(ValueError, match="from_revision"):
        manager.downgrade("base", from_revision="0001")


@pytest.mark.parametrize(
    ("statement", "said"),
    [(f"DROP TABLE {TABLE}", "is missing"), (f"DELETE FROM {VERSION_TABLE}", "is not up to date")],
)
def test_what_is_wrong_with_the_table_is_said_in_one_line(manager, db_session, statement, said):
    require_ledger(db_session)
    db_session.rollback()
    with db_session.get_bind().begin() as connection:
        connection.execute(text(statement))
    with pytest.raises(LedgerMissingError) as caught:
        require_ledger(db_session)
    assert str(caught.value) == f"the table of the ledger {said}: run `airflow db migrate`"


def test_mysql_takes_the_model():
    dialect = mysql.dialect()
    ddl = str(CreateTable(LaunchRow.__table__).compile(dialect=dialect))
    assert "BIGINT NOT NULL AUTO_INCREMENT" in ddl
    for index in LaunchRow.__table__.indexes:
        assert str(CreateIndex(index).compile(dialect=dialect)).startswith("CREATE")
        lengths = index.dialect_options["mysql"]["length"] or {}
        size = sum(
            lengths.get(column.name, getattr(column.type, "length", None) or 2) * MYSQL_BYTES_PER_CHARACTER
            for column in index.columns
        )
        assert size <= MYSQL_INDEX_BYTES, index.name


@pytest.mark.parametrize("dialect", ["mysql", "postgresql", "sqlite"])
def test_the_migration_makes_the_same_sql_as_the_model(dialect):
    written = StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": written}
    )
    with Operations.context(context):
        import_module(MIGRATION).upgrade()
    statements = {_normal(part) for part in written.getvalue().split(";") if part.strip()}
    table = LaunchRow.__table__
    elements = [CreateTable(table), *(CreateIndex(index) for index in table.indexes)]
    assert statements == {_normal(str(element.compile(dialect=context.dialect))) for element in elements}


def _normal(statement):
    return " ".join(statement.split())
