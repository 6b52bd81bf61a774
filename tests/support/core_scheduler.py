# SPDX-License-Identifier: Apache-2.0
"""Airflow's own scheduler around an executor in this process, turned by hand.

What happens between two turns is the test's affair: a scheduler that is not turned has stalled.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.callbacks.database_callback_sink import DatabaseCallbackSink
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.utils.session import create_session
from sqlalchemy import select, update

from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.executors.base_executor import BaseExecutor

STALLED_SECONDS = 3600
"""Longer than any health check threshold."""


class CoreScheduler:
    """One scheduler, with a job of its own, that is alive from now on.

    :param executors: not started yet; the first one is the default
    """

    def __init__(self, *executors: BaseExecutor) -> None:
        self.job = Job(job_type="SchedulerJob")
        self.runner = SchedulerJobRunner(
            self.job, num_runs=1, scheduler_idle_sleep_time=0, executors=list(executors)
        )
        self.job.prepare_for_execution()
        self.executors = executors
        for executor in executors:
            executor.job_id = self.job.id
            executor.callback_sink = DatabaseCallbackSink()
            executor.start()

    def turn(self, times: int = 1) -> None:
        """Do one turn of the scheduler's loop: look for orphans, schedule, send, observe, take in events.

        :param times: how many turns
        """
        for _ in range(times):
            # What `airflow scheduler` runs, but for the signals it installs.
            self.runner._run_scheduler_loop()

    def stall(self) -> None:
        """Let it be long since its last heartbeat; the next scheduler that looks declares it dead."""
        heartbeat = rows.utcnow() - timedelta(seconds=STALLED_SECONDS)
        with create_session(scoped=False) as session:
            session.execute(update(Job).where(Job.id == self.job.id).values(latest_heartbeat=heartbeat))
        self.job.latest_heartbeat = heartbeat

    def state(self) -> str:
        """Return what other schedulers take it for: ``running`` or ``failed``."""
        with create_session(scoped=False) as session:
            return str(session.scalar(select(Job.state).where(Job.id == self.job.id)))


def start_run(dag_id: str, task_ids: Iterable[str], run_id: str = rows.RUN_ID, **dag: Any) -> None:
    """Start a run of a new DAG of independent tasks; its task instances wait for a scheduler.

    :param task_ids: ``name`` or ``name@queue``
    :param dag: further arguments of the DAG
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.sdk import DAG, BaseOperator

    made = DAG(dag_id, schedule=None, **dag)
    for name in task_ids:
        task_id, _, queue = name.partition("@")
        BaseOperator(task_id=task_id, dag=made, retries=3, retry_delay=timedelta(0), queue=queue or "default")
    with create_session(scoped=False) as session:
        if session.get(DagModel, dag_id) is None:
            rows.write_dag(session, made)
            session.get(DagModel, dag_id).is_paused = False
        run: DagRun = rows.make_dag_run(session, dag_id, run_id)
        run.dag = SerializedDagModel.get_dag(dag_id, session=session)
        run.verify_integrity(session=session, dag_version_id=run.created_dag_version_id)
