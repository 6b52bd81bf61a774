# SPDX-License-Identifier: Apache-2.0
"""Rows of Airflow's own tables, made as Airflow makes them.

Every function adds to the given session and flushes; the test commits when others are to see the rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from sqlalchemy import select

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.jobs.job import Job
    from airflow.models.callback import ExecutorCallback
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import DAG
    from sqlalchemy.orm import Session

BUNDLE = "dispatcher-tests"
DAG_ID = "dag"
RUN_ID = "manual__2026-01-01T00:00:00+00:00"
TASK_ID = "task"
CALLBACK_PATH = "tests.support.callbacks.note"
NEW_TOKEN: Any = object()
"""Stands for "a token of its own" where ``None`` means "no token"."""

_STARTED_STATES = frozenset({"running", "restarting", "deferred", "success", "failed"})
_FINISHED_STATES = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})


def utcnow() -> datetime:
    """Return the current time as Airflow stores it, aware and in UTC."""
    return datetime.now(tz=UTC)


def write_dag(session: Session, dag: DAG) -> None:
    """Write the rows of ``dag`` (bundle, model, version, serialised form) as the DAG processor does."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG

    if session.get(DagBundleModel, BUNDLE) is None:
        session.add(DagBundleModel(name=BUNDLE))
        session.flush()
    SerializedDAG.bulk_write_to_db(BUNDLE, None, [dag], session=session)
    SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name=BUNDLE, session=session)
    session.flush()


def make_dag(session: Session, dag_id: str = DAG_ID, task_ids: Iterable[str] = (TASK_ID,)) -> None:
    """Write a DAG of independent tasks that has at least ``task_ids``; tasks it had already stay."""
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.sdk import DAG, BaseOperator

    known = SerializedDagModel.get_dag(dag_id, session=session)
    wanted = set(task_ids) | (set(known.task_ids) if known else set())
    if known and wanted == set(known.task_ids):
        return
    dag = DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
    for task_id in sorted(wanted):
        BaseOperator(task_id=task_id, dag=dag, retries=1)
    write_dag(session, dag)


def make_dag_run(
    session: Session, dag_id: str = DAG_ID, run_id: str = RUN_ID, state: str = "running", **columns: Any
) -> DagRun:
    """Add a manual run of a DAG that was written before, or return the one that is there.

    No task instances are made with it.

    :param columns: further columns of ``dag_run``.
    """
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    existing = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if existing is not None:
        return existing
    now = utcnow()
    run = DagRun(
        dag_id=dag_id,
        run_id=run_id,
        state=state,
        run_type=DagRunType.MANUAL,
        run_after=now,
        start_date=now,
        triggered_by=DagRunTriggeredByType.TEST,
    )
    run.created_dag_version = DagVersion.get_latest_version(dag_id, session=session)
    for name, value in columns.items():
        setattr(run, name, value)
    session.add(run)
    session.flush()
    return run


def make_task_instance(
    session: Session,
    *,
    dag_id: str = DAG_ID,
    run_id: str = RUN_ID,
    task_id: str = TASK_ID,
    map_index: int = -1,
    state: str | None = "queued",
    token: UUID | str | None = NEW_TOKEN,
    executor: str | None = None,
    queue: str = "default",
    queued_by_job_id: int | None = None,
    try_number: int = 1,
    **columns: Any,
) -> TaskInstance:
    """Add a task instance in any state, and the DAG and the run that it belongs to where they are missing.

    :param token: the launch token, ``external_executor_id``; a new one by default, ``None`` for none.
    :param executor: the executor that the task names, as in the column ``executor``.
    :param queued_by_job_id: id of the scheduler job that queued it.
    :param columns: further columns of ``task_instance``; they win over what the state implies.
    """
    from airflow.models.dag_version import DagVersion
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance

    make_dag(session, dag_id, [task_id])
    make_dag_run(session, dag_id, run_id)
    dag = SerializedDagModel.get_dag(dag_id, session=session)
    version = DagVersion.get_latest_version(dag_id, session=session)
    instance = TaskInstance(
        task=dag.get_task(task_id),
        dag_version_id=version.id,
        run_id=run_id,
        state=state,
        map_index=map_index,
    )
    values: dict[str, Any] = {
        "executor": executor,
        "queue": queue,
        "queued_by_job_id": queued_by_job_id,
        "try_number": try_number,
        "external_executor_id": str(uuid4()) if token is NEW_TOKEN else _text(token),
        **_columns_of(state),
        **columns,
    }
    for name, value in values.items():
        setattr(instance, name, value)
    session.add(instance)
    session.flush()
    return instance


def make_scheduler_job(
    session: Session, state: str = "running", heartbeat_age: float = 0.0, **columns: Any
) -> Job:
    """Add the job row of a scheduler.

    :param state: ``running`` for a live one; ``failed`` or ``success`` for one that ended.
    :param heartbeat_age: seconds since its last heartbeat.
    :param columns: further columns of ``job``.
    """
    from airflow.jobs.job import Job

    job = Job(job_type="SchedulerJob", state=state, executor_class="HybridExecutor", **columns)
    job.latest_heartbeat = utcnow() - timedelta(seconds=heartbeat_age)
    session.add(job)
    session.flush()
    return job


def make_callback(
    session: Session,
    *,
    state: str = "pending",
    path: str = CALLBACK_PATH,
    kwargs: dict[str, Any] | None = None,
    dag_id: str = DAG_ID,
    run_id: str = RUN_ID,
    executor: str | None = None,
    priority_weight: int = 1,
) -> ExecutorCallback:
    """Add a callback that an executor runs, as a missed deadline of a DAG run leaves it.

    :param state: one of Airflow's callback states, ``pending`` until a scheduler queues it.
    :param path: import path of the function that it calls.
    :param kwargs: arguments of that function.
    :param executor: the executor that it names.
    """
    from airflow.models.callback import CallbackFetchMethod, ExecutorCallback
    from airflow.sdk.definitions.deadline import SyncCallback

    make_dag(session, dag_id)
    run = make_dag_run(session, dag_id, run_id)
    callback = ExecutorCallback(
        SyncCallback(path, kwargs=kwargs or {}, executor=executor),
        fetch_method=CallbackFetchMethod.IMPORT_PATH,
        priority_weight=priority_weight,
    )
    callback.data = {**callback.data, "dag_id": dag_id, "dag_run_id": str(run.id)}
    callback.bundle_name = BUNDLE
    callback.state = state
    session.add(callback)
    session.flush()
    return callback


def _columns_of(state: str | None) -> dict[str, Any]:
    now = utcnow()
    columns: dict[str, Any] = {}
    if state is not None:
        columns["scheduled_dttm"] = now
    if state == "queued" or state in _STARTED_STATES:
        columns["queued_dttm"] = now
    if state in _STARTED_STATES:
        columns |= {"start_date": now, "last_heartbeat_at": now, "hostname": "elsewhere", "pid": 1}
    if state in _FINISHED_STATES:
        columns["end_date"] = now
    return columns


def _text(token: UUID | str | None) -> str | None:
    return None if token is None else str(token)
