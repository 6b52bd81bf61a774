# SPDX-License-Identifier: Apache-2.0
"""What the executor puts into the event log of a task is saved by Airflow's own scheduler code."""

from __future__ import annotations

from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.log import Log
from airflow.models.taskinstancekey import TaskInstanceKey
from sqlalchemy import select

from dispatcher.executor import HybridExecutor

EVENTS = ["launched again", "launch stuck"]


def key(task_id):
    return TaskInstanceKey("event_log", task_id, "run", 1, -1)


def test_records_reach_the_table_though_airflow_refers_to_them_weakly(db_session):
    executor = HybridExecutor()
    for event in EVENTS:
        executor.log_task_event(event=event, extra=f"why {event}", ti_key=key("task"))

    SchedulerJobRunner._process_task_event_logs(executor._task_event_logs, db_session)
    db_session.commit()

    saved = db_session.execute(
        select(Log.event, Log.extra, Log.task_id).where(Log.dag_id == "event_log")
    ).all()
    assert sorted(saved) == sorted((event, f"why {event}", "task") for event in EVENTS)
    assert not executor._task_event_logs


def test_records_of_a_later_loop_are_saved_too(db_session):
    executor = HybridExecutor()
    for task_id in ("first", "second"):
        executor.log_task_event(event="launched again", extra="why", ti_key=key(task_id))
        SchedulerJobRunner._process_task_event_logs(executor._task_event_logs, db_session)
    db_session.commit()

    saved = db_session.scalars(select(Log.task_id).where(Log.dag_id == "event_log"))
    assert sorted(saved) == ["first", "second"]
