# SPDX-License-Identifier: Apache-2.0
"""A HybridExecutor over backends in memory, driven as the scheduler drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.executors.workloads import ExecuteCallback, ExecuteTask
from airflow.models.callback import CallbackKey
from airflow.utils.session import create_session
from sqlalchemy import select, update

from dispatcher.backends.memory import MemoryBackend
from dispatcher.compat import AIRFLOW_3_4_PLUS
from dispatcher.domain.lifecycle import BackendName
from dispatcher.executor import HybridExecutor
from dispatcher.ledger import claims, store
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from airflow.models.callback import ExecutorCallback
    from airflow.models.taskinstance import TaskInstance

    from dispatcher.domain.launch import Launch
    from dispatcher.settings import Settings


class MemoryExecutor(HybridExecutor):
    """The executor as shipped, with backends that need no service."""

    def __init__(self, job_id: int, parallelism: int = 32) -> None:
        super().__init__(parallelism=parallelism)
        self.job_id = job_id
        self.celery = MemoryBackend(BackendName.CELERY)
        self.kubernetes = MemoryBackend(BackendName.KUBERNETES)

    def _make_backends(self, _settings: Settings) -> Mapping[BackendName, MemoryBackend]:
        return {BackendName.CELERY: self.celery, BackendName.KUBERNETES: self.kubernetes}


def started_executor(**job: Any) -> MemoryExecutor:
    """Return a started executor with a scheduler job of its own."""
    with create_session(scoped=False) as session:
        job_id = rows.make_scheduler_job(session, **job).id
    executor = MemoryExecutor(job_id)
    executor.start()
    return executor


def queue_task(executor: HybridExecutor, **columns: Any) -> str:
    """Queue a task as the scheduler does, in one transaction, and return its token."""
    with create_session(scoped=False) as session:
        ti = rows.make_task_instance(session, queued_by_job_id=executor.job_id, **columns)
        return enqueue(executor, session, ti)


def enqueue(executor: HybridExecutor, session: Any, ti: TaskInstance) -> str:
    """Hand a QUEUED task instance to the executor, in the caller's transaction."""
    executor.queue_workload(ExecuteTask.make(ti), session)
    session.flush()
    token: str = session.scalar(select(type(ti).external_executor_id).where(type(ti).id == ti.id))
    return token


def queue_callback(executor: HybridExecutor, callback_id: Any) -> None:
    """Queue a callback as the scheduler does, in one transaction."""
    from airflow.models.callback import ExecutorCallback
    from airflow.models.dagrun import DagRun

    with create_session(scoped=False) as session:
        callback: ExecutorCallback = session.get(ExecutorCallback, callback_id)
        run = session.get(DagRun, int(callback.data["dag_run_id"]))
        executor.queue_workload(ExecuteCallback.make(callback=callback, dag_run=run), session)
        callback.state = "queued"


def loop(executor: HybridExecutor) -> dict[Any, tuple[Any, Any]]:
    """Run one turn of the scheduler's loop and return the events that Airflow would process."""
    executor.heartbeat()
    return executor.get_event_buffer()


def named(keys: Iterable[Any]) -> dict[Any, Any]:
    """Return for each of Airflow's keys the one that has the task's names: on 3.4 a task's key is a UUID."""
    from airflow.models.taskinstance import TaskInstance

    keys = list(keys)
    ids = [key.id for key in keys if AIRFLOW_3_4_PLUS and not isinstance(key, CallbackKey)]
    if not ids:
        return dict(zip(keys, keys, strict=True))
    with create_session(scoped=False) as session:
        found = {
            ti.id: ti.key for ti in session.scalars(select(TaskInstance).where(TaskInstance.id.in_(ids)))
        }
    return {key: found.get(key.id, key) for key in keys}


def told(executor: HybridExecutor) -> list[tuple[Any, Any, Any]]:
    """Run one turn of the scheduler's loop and return its events as key with names, state and reason."""
    events = loop(executor)
    names = named(events)
    return [(names[key], *event) for key, event in events.items()]


def set_task(token: str, **columns: Any) -> None:
    """Write columns of the task instance that carries ``token``."""
    from airflow.models.taskinstance import TaskInstance

    with create_session(scoped=False) as session:
        session.execute(
            update(TaskInstance).where(TaskInstance.external_executor_id == token).values(**columns)
        )


def launch_of(token: str) -> Launch:
    """Read the ledger row of ``token``."""
    with create_session(scoped=False) as session:
        launch = store.by_token(session.connection(), token)
    assert launch is not None, f"no launch {token}"
    return launch


def claim(token: str, claimant: str = "nonce:one") -> bool:
    """Claim a task's launch as ``/run`` does: the ledger row and RUNNING in one transaction."""
    from airflow.models.taskinstance import TaskInstance

    with create_session(scoped=False) as session:
        launch = store.by_token(session.connection(), token)
        assert launch is not None
        won = claims.claim_task(
            session.connection(), token, launch.subject_id, claimant, hostname="worker", now=rows.utcnow()
        )
        if won:
            session.execute(
                update(TaskInstance)
                .where(TaskInstance.external_executor_id == token)
                .values(state="running", last_heartbeat_at=rows.utcnow(), hostname="worker", pid=1)
            )
        return won


def sent_long_ago(executor: HybridExecutor, token: str, seconds: timedelta) -> None:
    """Make a launch one that was sent so long ago, in the ledger and in the executor's memory."""
    from dispatcher.ledger.models import LaunchRow

    submitted_at = rows.utcnow() - seconds
    with create_session(scoped=False) as session:
        session.execute(update(LaunchRow).where(LaunchRow.token == token).values(submitted_at=submitted_at))
    for flight in executor.dispatcher.in_flight():
        if flight.token == token:
            flight.launch = flight.launch._replace(submitted_at=submitted_at)
