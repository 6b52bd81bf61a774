# SPDX-License-Identifier: Apache-2.0
"""No statement of the loop reads more where more has ended: PostgreSQL tells how much each one touched."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from airflow import settings
from airflow.jobs.job import Job
from airflow.models.callback import Callback
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import event, select, text, update

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger.models import LaunchRow
from tests.support import dispatching as run
from tests.support import rows

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.usefixtures("several_schedulers")]

ENDED_LAUNCHES = 24_000
ENDED = 5_000
"""Rows of the other tables that nobody waits for any more: hundreds of blocks of each."""

OLD = 50
"""Launches that ended so long ago that they are removed."""

FEW_BLOCKS = 45
BLOCKS_PER_PARAMETER = 3
"""More than any statement of the loop touches that finds its rows by an index."""

EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
EXPLAINED = ("SELECT", "UPDATE", "DELETE")
BY_STATE = "FROM callback \nWHERE callback.type ="
"""Airflow's table has no index for this. Its own loop asks for it in each turn, ours every five minutes."""

ONLOOKERS = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL"""
"""How many others have a view of the database as it was."""

OURS = ("dispatcher_launch", "task_instance", "callback", "job")


def multiply(connection, model, copies: int, **different: str) -> None:
    """Add copies of the one row of a table.

    :param copies: how many
    :param different: SQL for the columns that differ, where ``n`` is the number of the copy
    """
    table = model.__table__
    columns = [column.name for column in table.columns if different.get(column.name) != ""]
    values = [different.get(name, f't."{name}"') for name in columns]
    names = ", ".join(f'"{name}"' for name in columns)
    connection.execute(
        text(
            f'INSERT INTO "{table.name}" ({names}) SELECT {", ".join(values)} '
            f'FROM "{table.name}" t, generate_series(1, {copies}) n'
        )
    )


@pytest.fixture
def executor():
    """An executor that has been busy for long, as others before it were, with statistics as they are kept."""
    executor = run.started_executor()
    run.queue_task(executor)
    with create_session(scoped=False) as session:
        connection = session.connection()
        rows.make_callback(session, state="success")
        session.execute(update(TaskInstance).values(state="success"))
        session.execute(update(LaunchRow).values(state="succeeded", settled_at=rows.utcnow(), claimant="one"))
        uuid = "gen_random_uuid()"
        # As Airflow 3.4 calls it, and as 3.3 does.
        (index,) = {"region_index", "map_index"} & set(TaskInstance.__table__.columns.keys())
        tasks = {"id": uuid, "external_executor_id": f"{uuid}::text", index: "n"}
        multiply(connection, TaskInstance, ENDED, **tasks)
        multiply(
            connection,
            LaunchRow,
            ENDED_LAUNCHES,
            sequence="",
            token=f"{uuid}::text",
            subject_id=f"{uuid}::text",
            map_index="n",
            scheduler_job_id=f"CASE WHEN n % 2 = 0 THEN '{executor.job_id}' ELSE 'dead-' || n % 50 END",
        )
        long_ago = rows.utcnow() - timedelta(days=40)
        session.execute(
            update(LaunchRow)
            .where(LaunchRow.map_index.between(1, OLD))
            .values(ended_at=long_ago, settled_at=long_ago)
        )
        multiply(connection, Callback, ENDED, id=uuid)
        multiply(connection, Job, ENDED, id=f"{executor.job_id} + 1000 + n", state="'failed'")
    with settings.get_engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # What earlier tests left stays as long as anybody, be it the server's own worker, may still see it.
        given_up = time.monotonic() + 20
        while connection.scalar(text(ONLOOKERS)) and time.monotonic() < given_up:
            time.sleep(0.1)
        connection.execute(text("VACUUM ANALYZE " + ", ".join(OURS)))
    # One that remembers nothing of all that.
    fresh = run.MemoryExecutor(executor.job_id)
    fresh.start()
    return fresh


@contextmanager
def measured(touched: dict[str, int]):
    """Note how many blocks more than it may each statement touches, by its text."""

    def explain(connection, cursor, statement, parameters, _context, many) -> None:
        if many or not statement.startswith(EXPLAINED) or not any(name in statement for name in OURS):
            return
        if BY_STATE in statement:
            return
        # An UPDATE is run by EXPLAIN ANALYZE: it is taken back, and what follows finds all as it was.
        with cursor.connection.cursor() as aside:
            aside.execute("SAVEPOINT aside")
            aside.execute(EXPLAIN + statement, parameters)
            ((found,),) = aside.fetchall()
            aside.execute("ROLLBACK TO SAVEPOINT aside")
        plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        may_touch = FEW_BLOCKS + BLOCKS_PER_PARAMETER * len(parameters)
        touched[statement] = max(touched.get(statement, -may_touch), blocks - may_touch)

    engine = settings.get_engine()
    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def test_every_statement_of_the_loop_touches_few_blocks(executor):
    dead = run.started_executor()
    left = run.queue_task(dead, task_id="left")
    with create_session(scoped=False) as session:
        left_callback = rows.make_callback(session).id
        own_callback = rows.make_callback(session).id
        session.execute(update(Job).where(Job.id == dead.job_id).values(state="failed"))
    run.queue_callback(dead, left_callback)
    touched: dict[str, int] = {}
    token = run.queue_task(executor, task_id="mine")
    lost = run.queue_task(executor, task_id="lost", queue="kubernetes")
    run.queue_callback(executor, own_callback)
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == left))
        with measured(touched):
            assert executor.try_adopt_task_instances([ti]) == []
    with measured(touched):
        run.loop(executor)
    assert run.claim(token)
    run.set_task(token, state="success")
    executor.celery.end(Observation(token, ok=True, claimant="nonce:one"))
    executor.kubernetes.end(Observation(lost, ok=False, reason="evicted", by_infrastructure=True))
    with measured(touched):
        for _ in range(4):
            executor.dispatcher.adopt_soon()
            run.loop(executor)
    assert run.launch_of(token).state is LaunchState.SUCCEEDED
    assert run.launch_of(token).settled_at is not None
    assert run.launch_of(left).scheduler_job_id == str(executor.job_id)
    assert len(touched) > 20, "what the loop does was done"
    assert any(text.startswith("DELETE FROM dispatcher_launch") for text in touched)
    assert {blocks: text for text, blocks in touched.items() if blocks > 0} == {}
