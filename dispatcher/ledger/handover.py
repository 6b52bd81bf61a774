# SPDX-License-Identifier: Apache-2.0
"""What the handover to Airflow's stock executors reads and writes in the metadata database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from airflow.jobs.job import Job
from airflow.models.callback import Callback
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Connection, and_, case, exists, null, or_, select, update

from dispatcher.compat import of_the_present
from dispatcher.domain.launch import Subject
from dispatcher.domain.lifecycle import BackendName, LaunchEvent, LaunchKind
from dispatcher.ledger import store
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.rows import COLUMNS, launch_of
from dispatcher.ledger.subjects import lock_callback

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime, timedelta

    from sqlalchemy import ColumnElement

    from dispatcher.domain.launch import Launch

LIVE = ("queued", "running", "restarting")
"""The states in which a scheduler that starts looks for a task instance's executor."""

NOT_QUEUED = ("scheduled", "deferred", "up_for_retry", "up_for_reschedule")
"""The states, beside none, of a task instance that a scheduler has yet to queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """A task instance that is queued or runs under a token.

    :param subject: state and token
    :param queued_by: job id of the scheduler that minds it
    """

    subject: Subject
    queued_by: str | None


@dataclass(frozen=True, slots=True)
class AliveScheduler:
    """A scheduler whose heartbeat is fresh.

    :param heartbeat_at: its last heartbeat
    """

    job_id: str
    hostname: str | None
    heartbeat_at: datetime | None


def schedulers_with_heartbeat(
    connection: Connection, *, now: datetime, threshold: timedelta
) -> list[AliveScheduler]:
    """Return the schedulers that Airflow takes for alive.

    :param connection: the caller's transaction
    :param now: the present
    :param threshold: ``[scheduler] scheduler_health_check_threshold``
    """
    statement = (
        select(Job.id, Job.hostname, Job.latest_heartbeat)
        .where(
            Job.job_type == "SchedulerJob", Job.state == "running", Job.latest_heartbeat >= now - threshold
        )
        .order_by(Job.id)
    )
    return [AliveScheduler(str(one.id), one.hostname, one[2]) for one in connection.execute(statement)]


def unsettled(connection: Connection) -> list[Launch]:
    """Read the launches of all owners and teams that are not settled, oldest first.

    :param connection: the caller's transaction
    """
    statement = select(*COLUMNS).where(LaunchRow.settled_at.is_(None)).order_by(LaunchRow.sequence)
    return [launch_of(row) for row in connection.execute(statement)]


def live_tasks(connection: Connection) -> dict[str, LiveTask]:
    """Read the task instances that are queued or run under a token, by token.

    :param connection: the caller's transaction
    """
    statement = select(
        TaskInstance.id,
        TaskInstance.state,
        TaskInstance.external_executor_id,
        TaskInstance.queued_by_job_id,
    ).where(TaskInstance.state.in_(LIVE), TaskInstance.external_executor_id.is_not(None), of_the_present())
    return {
        row.external_executor_id: LiveTask(
            subject=Subject(id=str(row.id), state=str(row.state), token=row.external_executor_id),
            queued_by=None if row.queued_by_job_id is None else str(row.queued_by_job_id),
        )
        for row in connection.execute(statement)
    }


def name_executor(connection: Connection, task: LiveTask, name: str | None) -> bool:
    """Let a live task instance name the executor that takes it over; return whether it was as read.

    :param connection: the caller's transaction
    :param task: which one
    :param name: of the executor; None for the default one
    """
    hit = connection.execute(
        update(TaskInstance).where(*_as_read(task), TaskInstance.state.in_(LIVE)).values(executor=name)
    )
    return hit.rowcount == 1


def give_back(
    connection: Connection, launch: Launch, task: LiveTask, name: str | None, *, now: datetime, reason: str
) -> bool:
    """Take its launch from a queued task instance, so that the next scheduler resets it.

    :param connection: the caller's transaction
    :param launch: can be claimed no more from then on
    :param task: the task instance
    :param name: the executor that it is to name
    :param now: the present
    :param reason: for people
    :returns: whether the task instance was as read
    """
    hit = connection.execute(
        update(TaskInstance)
        .where(*_as_read(task), TaskInstance.state == "queued")
        .values(external_executor_id=None, executor=name)
    )
    if hit.rowcount != 1:
        return False
    store.record(connection, LaunchEvent.DROP, (launch.token,), now=now, reason=reason)
    return True


def give_back_callback(connection: Connection, launch: Launch, *, now: datetime, reason: str) -> bool:
    """Let a callback whose launch was never sent be PENDING again; return whether it was still so.

    :param connection: the caller's transaction
    :param launch: issued, and no more
    :param now: the present
    :param reason: for people
    """
    callback = lock_callback(connection, UUID(launch.subject_id))
    if callback is None or callback.state != "queued":
        return False
    dropped = store.record(
        connection,
        LaunchEvent.DROP,
        (launch.token,),
        now=now,
        kind=LaunchKind.CALLBACK,
        reason=reason,
        where=(LaunchRow.submitted_at.is_(None),),
    )
    if dropped:
        connection.execute(
            update(Callback).where(Callback.id == UUID(launch.subject_id)).values(state="pending")
        )
    return bool(dropped)


def name_executor_of_the_rest(
    connection: Connection,
    names: Mapping[BackendName, str | None],
    *,
    kubernetes_queue: str,
    own: Collection[str],
) -> int:
    """Let task instances of running DAG runs that are not queued yet name the executor of their queue.

    :param connection: the caller's transaction
    :param names: which executor to name, by backend; None for the default one
    :param kubernetes_queue: tasks of this queue are Kubernetes'
    :param own: names of our executor, which will not be there
    :returns: how many were changed
    """
    in_queue = TaskInstance.queue == kubernetes_queue
    names_ours = TaskInstance.executor.in_(list(own))
    unnamed = [
        and_(TaskInstance.executor.is_(None), in_queue if backend is BackendName.KUBERNETES else ~in_queue)
        for backend, name in names.items()
        if name is not None
    ]
    run = exists().where(
        DagRun.dag_id == TaskInstance.dag_id,
        DagRun.run_id == TaskInstance.run_id,
        DagRun.state.in_(("queued", "running")),
    )
    hit = connection.execute(
        update(TaskInstance)
        .where(
            or_(TaskInstance.state.is_(None), TaskInstance.state.in_(NOT_QUEUED)),
            or_(names_ours, *unnamed),
            run,
            of_the_present(),
        )
        .values(
            executor=case(
                (in_queue, names[BackendName.KUBERNETES] or null()),
                else_=names[BackendName.CELERY] or null(),
            )
        )
    )
    return int(hit.rowcount)


def _as_read(task: LiveTask) -> tuple[ColumnElement[bool], ...]:
    return (
        TaskInstance.id == UUID(task.subject.id),
        TaskInstance.external_executor_id == task.subject.token,
        of_the_present(),
    )
