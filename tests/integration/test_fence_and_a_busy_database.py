# SPDX-License-Identifier: Apache-2.0
"""A lock that is not to be had is answered with 5xx, which clients repeat, and never with 409 (rule 10)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow import settings
from sqlalchemy import event, text, update
from sqlalchemy.exc import OperationalError

from tests.support.callback_calls import callback_row, callback_worker, queued_callback_launch
from tests.support.database import close_connections_of_loop
from tests.support.fence_calls import guarded, launch_row, queued_launch, task_instance

IMPATIENCE = {"sqlite": "PRAGMA busy_timeout = 100", "postgres": "SET lock_timeout = '100ms'"}


LOCKS = {
    "ledger": text("SELECT 1 FROM dispatcher_launch WHERE token = :token FOR UPDATE"),
    "task": text("SELECT 1 FROM task_instance WHERE external_executor_id = :token FOR UPDATE"),
}


@pytest.fixture
def _impatient_server(execution_client, airflow_database):
    """Let connections of this process wait a tenth of a second for locks, those of the server's loop, too."""
    engines = [settings.get_engine()]
    if settings.async_engine is not None:
        engines.append(settings.async_engine.sync_engine)

    def set_timeout(connection, _record):
        cursor = connection.cursor()
        cursor.execute(IMPATIENCE[airflow_database])
        cursor.close()
        if airflow_database == "postgres":
            connection.commit()

    def begin_anew():
        settings.get_engine().dispose()
        close_connections_of_loop(execution_client)

    begin_anew()
    for engine in engines:
        event.listen(engine, "connect", set_timeout)
    yield
    for engine in engines:
        event.remove(engine, "connect", set_timeout)
    begin_anew()


@pytest.fixture
def taken():
    """Return a function that takes a row away from everybody else until the test ends."""
    connections = []

    def take(row):
        model = type(row).__mapper__.primary_base_mapper.class_
        connection = settings.get_engine().connect()
        connection.execute(update(model).where(model.id == row.id).values(state=row.state))
        connections.append(connection)

    yield take
    for connection in connections:
        connection.rollback()
        connection.close()


@pytest.mark.usefixtures("_impatient_server")
@pytest.mark.parametrize("call", ["run", "report", "rendered_map_index", "skip_downstream", "heartbeat"])
def test_a_locked_task_instance(db_session, execution_client, taken, call):
    launch = queued_launch(db_session)
    worker = guarded(execution_client, launch)
    if call != "run":
        assert worker.run().status_code == 200
    before = launch_row(db_session, launch.token)
    taken(task_instance(db_session, launch.subject_id))

    assert getattr(worker, call)().status_code == 500

    assert launch_row(db_session, launch.token) == before


@pytest.mark.usefixtures("_impatient_server")
@pytest.mark.parametrize("call", ["run", "report"])
def test_a_locked_callback(db_session, execution_client, taken, call):
    launch = queued_callback_launch(db_session)
    worker = callback_worker(execution_client, launch)
    if call != "run":
        assert worker.run().status_code == 204
    before = launch_row(db_session, launch.token)
    taken(callback_row(db_session, launch.subject_id))

    assert getattr(worker, call)().status_code == 500

    assert launch_row(db_session, launch.token) == before


@pytest.mark.needs("postgres")
def test_a_deadlock(db_session, execution_client, airflow_database):
    """Somebody takes the rows in the other order: the database ends one of the two."""
    if airflow_database != "postgres":
        pytest.skip("SQLite has one lock only")
    launch = queued_launch(db_session)
    worker = guarded(execution_client, launch)
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")
    with settings.get_engine().connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(LOCKS["ledger"], {"token": launch.token})
        answer = pool.submit(worker.run)
        while not connection.scalar(waits):
            time.sleep(0.02)
        try:
            connection.execute(LOCKS["task"], {"token": launch.token})
        except OperationalError:
            connection.rollback()
            assert answer.result().status_code == 200, "then the claim goes on"
        else:
            connection.rollback()
            assert answer.result().status_code == 500
            assert launch_row(db_session, launch.token) == launch
