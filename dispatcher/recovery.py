# SPDX-License-Identifier: Apache-2.0
"""Revoking and adopting: what the scheduler asks for in its own session (rules 16 to 18).

These hooks get task instances and no session. They work in the session that the task instances belong to,
write compare-and-sets only, and leave everything else to the next heartbeat, after the commit. All of it
may be rolled back and repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from airflow.executors.workloads import ExecuteCallback, ExecuteTask
from airflow.models.callback import ExecutorCallback
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, object_session

from dispatcher.compat import at_the_place_of
from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind
from dispatcher.domain.protocol import AdoptVerdict, RevokeVerdict, judge_adopt, judge_revoke
from dispatcher.ledger import store, subjects
from dispatcher.ledger.errors import DATABASE_ERRORS

log = logging.getLogger(__name__)


def revoke(ti: TaskInstance, owner: str, now: datetime, *, reason: str) -> str | None:
    """Revoke the launch of a task that the scheduler found stuck in queued (rule 17).

    :param ti: the task instance, in the scheduler's session
    :param owner: job id of this scheduler
    :param now: the present
    :param reason: for people
    :returns: the token of the revoked launch; None if there was none of ours
    :raises NotImplementedError: a worker claimed it meanwhile, or another scheduler took it over. The
        stuck-in-queued handler catches this and leaves the task instance alone, where it would overwrite
        RUNNING otherwise
    """
    session = _session_of(ti)
    connection = session.connection()
    subject = subjects.lock_task_instance(connection, ti.id)
    launch = _launch_of(session, subject)
    if launch is not None and launch.open and launch.scheduler_job_id != owner:
        raise NotImplementedError(f"{ti.key} was taken over by another scheduler and is left to it")
    verdict = judge_revoke(launch, subject)
    if verdict is RevokeVerdict.REVOKE and launch is not None:
        if store.record(connection, LaunchEvent.REVOKE, (launch.token,), now=now, reason=reason):
            return launch.token
        verdict = RevokeVerdict.DECLINE
    if verdict is RevokeVerdict.DECLINE:
        raise NotImplementedError(f"{ti.key} was claimed by a worker meanwhile: it runs and is left alone")
    return None


def adopt(tis: Sequence[TaskInstance], owner: str) -> list[TaskInstance]:
    """Take over the launches of dead schedulers (rule 18).

    :param tis: the task instances whose scheduler died, in the scheduler's session, with few columns loaded
    :param owner: job id of this scheduler
    :returns: those that must be reset: QUEUED without a launch of ours that may still start
    """
    if not tis:
        return []
    connection = _session_of(tis[0]).connection()
    tokens = [ti.external_executor_id for ti in tis if ti.external_executor_id]
    launches = store.by_tokens(connection, tokens)
    hand_back: list[TaskInstance] = []
    take: list[Launch] = []
    for ti in tis:
        launch = launches.get(ti.external_executor_id or "")
        subject = Subject(id=str(ti.id), state=_state(ti), token=ti.external_executor_id)
        verdict = judge_adopt(launch, subject)
        if verdict is AdoptVerdict.HAND_BACK:
            hand_back.append(ti)
        elif verdict is AdoptVerdict.TAKE_OVER and launch is not None:
            take.append(launch)
    taken = store.take_over(
        connection,
        [launch.token for launch in take],
        owner=owner,
        dead={launch.scheduler_job_id for launch in take},
    )
    if taken or hand_back:
        log.info(
            "Took over %d launches of dead schedulers; %d task instances are handed back to be reset",
            len(taken),
            len(hand_back),
        )
    return hand_back


def rebuild_workloads(session: Session, launches: Collection[Launch]) -> dict[str, Any]:
    """Make the workloads of taken-over launches again, from Airflow's rows.

    :param session: a session of our own
    :param launches: launches that no worker has claimed
    :returns: workloads by token; launches whose subject is gone, or whose rows make no workload, are absent
    """
    found: dict[str, Any] = {}
    for launch in launches:
        make = _callback_workload if launch.kind is LaunchKind.CALLBACK else _task_workload
        try:
            workload = make(session, launch)
        except DATABASE_ERRORS:
            raise
        except Exception as exc:  # noqa: BLE001  # a row that is not as Airflow expects must not stop the rest
            log.warning("The workload of launch %s cannot be made (%s)", launch.token, type(exc).__name__)
            continue
        if workload is not None:
            found[launch.token] = workload
    return found


def _task_workload(session: Session, launch: Launch) -> ExecuteTask | None:
    place = at_the_place_of((launch,))
    if place is None:
        return None
    statement = (
        select(TaskInstance)
        .where(
            place,
            TaskInstance.external_executor_id == launch.token,
            # One in another state is never sent: to queue it would only have it forgotten in every loop.
            TaskInstance.state == "queued",
        )
        .options(joinedload(TaskInstance.dag_run), joinedload(TaskInstance.dag_model))
    )
    ti = session.scalar(statement)
    if ti is None or ti.dag_version_id is None:
        return None
    return ExecuteTask.make(ti, sentry_integration="sentry_sdk.integrations.celery.CeleryIntegration")


def _callback_workload(session: Session, launch: Launch) -> ExecuteCallback | None:
    callback = session.get(ExecutorCallback, subjects.uuid_of(launch))
    if callback is None or not isinstance(callback.data, dict):
        return None
    dag_run_id = callback.data.get("dag_run_id")
    dag_run = None if dag_run_id is None else session.get(DagRun, int(dag_run_id))
    return None if dag_run is None else ExecuteCallback.make(callback=callback, dag_run=dag_run)


def _launch_of(session: Session, subject: Subject | None) -> Launch | None:
    if subject is None or subject.token is None:
        return None
    return store.by_token(session.connection(), subject.token, lock=True)


def _session_of(ti: TaskInstance) -> Session:
    session = object_session(ti)
    if session is None:
        raise RuntimeError(f"{ti.key} belongs to no session, though the scheduler passes it in one")
    return session


def _state(ti: TaskInstance) -> str | None:
    return None if ti.state is None else str(getattr(ti.state, "value", ti.state))
