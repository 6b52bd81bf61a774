# SPDX-License-Identifier: Apache-2.0
"""What both executors stand on: rows of queued tasks, a broker, and workers that are played."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import redis
from airflow.configuration import conf
from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import insert, select, text, update

from dispatcher.domain.launch import claimant_from_nonce
from dispatcher.ledger.models import LaunchRow
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.executors.base_executor import BaseExecutor

    from dispatcher.backends.base import Submission
    from dispatcher.backends.celery.backend import CeleryBackend

SLOTS = 100_000
QUEUE = "default"
PIPELINE = 500
PAYLOAD_BYTES = 2_000
"""About what a message of one task is long."""


@contextmanager
def started(way: str) -> Iterator[BaseExecutor]:
    """Yield a started executor, as it is shipped: the stock one or ours."""
    executor = _make_ours() if way == "ours" else _make_stock()
    with create_session(scoped=False) as session:
        executor.job_id = rows.make_scheduler_job(session).id
    executor.start()
    try:
        yield executor
    finally:
        if way == "ours":
            executor.end()


def _make_ours() -> BaseExecutor:
    from dispatcher.executor import HybridExecutor

    return HybridExecutor(parallelism=SLOTS)


def _make_stock() -> BaseExecutor:
    from airflow.providers.celery.executors.celery_executor import CeleryExecutor

    return CeleryExecutor(parallelism=SLOTS)


def make_backend() -> CeleryBackend:
    """Return our backend alone."""
    from dispatcher.backends.celery.backend import CeleryBackend
    from dispatcher.settings import load

    return CeleryBackend(conf, load(conf))


def queue(executor: Any, count: int, run: str) -> None:
    """Queue the mapped task instances of a run as the scheduler does, in one transaction.

    The stock executor gets its workloads signed, as the scheduler does it; ours signs at the send.
    """
    signs_itself = hasattr(executor, "dispatcher")
    with create_session(scoped=False) as session:
        run_id = f"{run}__{executor.job_id}"
        instance = rows.make_task_instance(
            session, map_index=0, run_id=run_id, queue=QUEUE, queued_by_job_id=executor.job_id
        )
        table = TaskInstance.__table__
        row = dict(session.execute(select(table).where(table.c.id == instance.id)).mappings().one())
        # Airflow 3.4 has the index in a column of another name.
        index = TaskInstance.map_index.property.columns[0].name
        mapped = [
            {**row, "id": uuid4(), index: number, "external_executor_id": str(uuid4())}
            for number in range(1, count)
        ]
        if mapped:
            session.execute(insert(table), mapped)
        generator = None if signs_itself else executor.jwt_generator
        for one in session.scalars(select(TaskInstance).where(TaskInstance.run_id == run_id)):
            executor.queue_workload(ExecuteTask.make(one, generator=generator), session)
    analyze()


def analyze() -> None:
    """Let the database know its tables, as it does by itself where they do not come into being just now."""
    from airflow import settings

    with settings.get_engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in (TaskInstance.__tablename__, LaunchRow.__tablename__):
            connection.execute(text(f"VACUUM ANALYZE {table}"))


def claim_all(executor: BaseExecutor) -> None:
    """Let every task of the executor run: the worker that claimed it is not needed for that."""
    with create_session(scoped=False) as session:
        session.execute(
            update(TaskInstance)
            .where(TaskInstance.queued_by_job_id == executor.job_id)
            .values(state="running", last_heartbeat_at=rows.utcnow())
        )
        session.execute(
            update(LaunchRow)
            .where(LaunchRow.scheduler_job_id == str(executor.job_id))
            .values(state="claimed", claimed_at=rows.utcnow(), claimant=claimant_from_nonce("played"))
        )
    analyze()


def finish(executor: BaseExecutor, count: int) -> None:
    """Let some of the running tasks succeed, as a worker stores it."""
    with create_session(scoped=False) as session:
        running = list(
            session.scalars(
                select(TaskInstance)
                .where(TaskInstance.queued_by_job_id == executor.job_id, TaskInstance.state == "running")
                .limit(count)
            )
        )
        tokens = [one.external_executor_id for one in running]
        session.execute(
            update(TaskInstance)
            .where(TaskInstance.id.in_([one.id for one in running]))
            .values(state="success", end_date=rows.utcnow())
        )
    from airflow.providers.celery.executors.celery_executor_utils import create_celery_app

    with create_celery_app(conf) as worker:
        for token in tokens:
            worker.backend.mark_as_done(token, {"claimant": "played"})
        worker.backend.client.connection_pool.disconnect()


def messages_waiting() -> int:
    """Return how many messages wait in the queue."""
    with _broker() as client:
        return int(client.llen(QUEUE))


def empty_queues() -> None:
    """Take every message, as workers do."""
    with _broker() as client:
        client.delete(QUEUE)


def send_all(backend: CeleryBackend, waiting: dict[str, Submission]) -> None:
    """Send until everything is sent, as heartbeats do."""
    from dispatcher.backends.base import Sent

    while waiting:
        results = backend.submit(list(waiting.values()))
        waiting = {token: one for token, one in waiting.items() if not isinstance(results[token], Sent)}


def push_bare(count: int) -> float:
    """Push ready-made messages in pipelines; return how many per second."""
    messages = [json.dumps({"number": number, "body": "x" * PAYLOAD_BYTES}) for number in range(count)]
    with _broker() as client:
        client.ping()
        started_at = time.monotonic()
        for start in range(0, count, PIPELINE):
            with client.pipeline(transaction=False) as pipeline:
                for message in messages[start : start + PIPELINE]:
                    pipeline.lpush(QUEUE, message)
                pipeline.execute()
        return count / (time.monotonic() - started_at)


def _broker() -> redis.Redis:
    return redis.Redis.from_url(conf.get_mandatory_value("celery", "broker_url"))
