# SPDX-License-Identifier: Apache-2.0
"""B7: the scheduler finds a task stuck in queued by an unlocked read; a worker claims; the scheduler goes on.

Stock Airflow overwrites RUNNING, and the task runs twice. The revoke must be declined and the run go on.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")


class ClaimedMeanwhile(run.MemoryExecutor):
    """Lets a worker claim just before the scheduler revokes, where the race is."""

    claims_first = True

    def revoke_task(self, *, ti):
        if self.claims_first:
            session = session_of(ti)
            session.commit()
            assert run.claim(ti.external_executor_id)
        super().revoke_task(ti=ti)


def session_of(ti):
    from sqlalchemy.orm import object_session

    return object_session(ti)


def started(*, claims_first: bool) -> ClaimedMeanwhile:
    with create_session(scoped=False) as session:
        job_id = rows.make_scheduler_job(session).id
    executor = ClaimedMeanwhile(job_id)
    executor.claims_first = claims_first
    executor.start()
    return executor


def stuck_handling(executor) -> None:
    with create_session(scoped=False) as session:
        job = session.get(Job, executor.job_id)
        runner = SchedulerJobRunner(job=job, executors=[executor])
        runner._handle_tasks_stuck_in_queued(session=session)


def stuck_task(executor) -> str:
    token = run.queue_task(executor)
    run.loop(executor)
    run.set_task(token, queued_dttm=rows.utcnow() - timedelta(hours=1))
    return token


def state_of(token: str) -> str | None:
    with create_session(scoped=False) as session:
        return session.scalar(select(TaskInstance.state).where(TaskInstance.external_executor_id == token))


def test_the_run_goes_on():
    executor = started(claims_first=True)
    token = stuck_task(executor)

    stuck_handling(executor)

    assert state_of(token) == "running"
    assert run.launch_of(token).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1
    run.loop(executor)
    assert executor.celery.revoked == set()


def test_a_task_that_nobody_claimed_is_revoked_and_queued_again():
    executor = started(claims_first=False)
    token = stuck_task(executor)

    stuck_handling(executor)

    assert state_of(token) == "scheduled"
    assert run.launch_of(token).state is LaunchState.REVOKED
    assert executor.slots_occupied == 0
    assert not run.claim(token), "a worker that comes late is refused"
    assert run.loop(executor) == {}
    run.loop(executor)
    assert executor.celery.revoked == {token}, "the artefact goes in a later heartbeat, after the commit"
    assert run.launch_of(token).settled_at is not None
