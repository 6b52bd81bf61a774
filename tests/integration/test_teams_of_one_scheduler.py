# SPDX-License-Identifier: Apache-2.0
"""The executors of several teams share one scheduler, and with it one job id: each minds its own launches."""

from __future__ import annotations

import pytest
from airflow.jobs.job import Job
from airflow.utils.session import create_session
from sqlalchemy import update

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


def executor_of(team: str | None, job_id: int) -> run.MemoryExecutor:
    executor = run.MemoryExecutor(job_id)
    executor.team_name = team
    executor.start()
    return executor


@pytest.fixture
def teams():
    """Return the executors of nobody, of team a and of team b in one scheduler."""
    nobody = run.started_executor()
    return [nobody, executor_of("a", nobody.job_id), executor_of("b", nobody.job_id)]


def look_around(executors) -> list[dict]:
    for executor in executors:
        executor.dispatcher.adopt_soon()
    return [run.loop(executor) for executor in executors]


@pytest.mark.parametrize("whose", [0, 1])
def test_what_one_sent_or_is_to_send_is_not_sent_by_another(teams, whose):
    token = run.queue_task(teams[whose])
    others = [one for one in teams if one is not teams[whose]]

    look_around(others)
    run.loop(teams[whose])
    look_around(others)

    assert [one.celery.sends for one in others] == [[], []]
    assert [one.slots_occupied for one in others] == [0, 0]
    assert teams[whose].celery.sends == [token]


def test_an_end_is_reported_by_the_one_that_sent(teams):
    token = run.queue_task(teams[1])
    run.loop(teams[1])
    teams[1].celery.end(Observation(token, ok=False, reason="evicted"))
    teams[1].dispatcher.sync()

    events = look_around([teams[0], teams[2], teams[1]])

    assert [len(some) for some in events] == [0, 0, 1]
    assert run.launch_of(token).state is LaunchState.FAILED


def test_what_a_dead_scheduler_left_goes_to_the_same_team(teams):
    token = run.queue_task(teams[1])
    run.loop(teams[1])
    run.claim(token)
    with create_session(scoped=False) as session:
        session.execute(update(Job).where(Job.id == teams[1].job_id).values(state="failed"))
    nobody = run.started_executor()
    heir = executor_of("a", nobody.job_id)

    look_around([nobody, heir])

    assert (nobody.slots_occupied, heir.slots_occupied) == (0, 1)
