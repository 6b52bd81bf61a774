# SPDX-License-Identifier: Apache-2.0
"""A claim races the scheduler, which queues the task anew. Never do both succeed.

The re-queue is the scheduler's: in one transaction a task stuck in QUEUED goes back to SCHEDULED, in another
it becomes QUEUED under a new token. Known fault 67 is what happens where nothing compares tokens.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import UUID, uuid4

import httpx
import pytest
from airflow import settings
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import update

from tests.support.fence_calls import (
    assert_refused,
    guarded,
    launch_row,
    queued_launch,
    stock,
    task_instance,
)
from tests.support.launches import add_launch_of
from tests.support.rows import utcnow

ROUNDS = 50
STEPS = 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def client(api_server):
    with httpx.Client(base_url=api_server(workers=2).url, timeout=60) as client:
        yield client


def give_back(launch):
    """Take a task that is stuck in QUEUED back to SCHEDULED, if it still is, and say whether it was."""
    stuck = (TaskInstance.id == UUID(launch.subject_id)) & (TaskInstance.state == "queued")
    with settings.NonScopedSession.begin() as session:
        return session.execute(update(TaskInstance).where(stuck).values(state="scheduled")).rowcount == 1


def queue_anew(launch, token):
    """Queue a SCHEDULED task under another token, and issue the launch."""
    task_id = UUID(launch.subject_id)
    scheduled = (TaskInstance.id == task_id) & (TaskInstance.state == "scheduled")
    queued = {"state": "queued", "external_executor_id": token, "queued_dttm": utcnow()}
    with settings.NonScopedSession.begin() as session:
        hit = session.execute(update(TaskInstance).where(scheduled).values(queued))
        assert hit.rowcount == 1, "only the scheduler takes a task out of SCHEDULED"
        add_launch_of(session, session.get(TaskInstance, task_id, populate_existing=True))


def race(pool, worker, delay, requeue):
    """Let a claim and a re-queue loose at once, the re-queue ``delay`` seconds behind, and return both."""
    start = Barrier(2)

    def claim():
        start.wait()
        return worker.run()

    answer = pool.submit(claim)
    start.wait()
    time.sleep(delay)
    return requeue(), answer.result()


def typical_seconds(session, client):
    """Return how long a claim takes here."""
    workers = [guarded(client, queued_launch(session, run_id=f"warm-up-{number}")) for number in range(5)]
    began = time.perf_counter()
    for worker in workers:
        assert worker.run().status_code == 200
    return (time.perf_counter() - began) / len(workers)


@pytest.mark.parametrize("kind", [guarded, stock])
def test_never_both(db_session, client, kind):
    seconds = typical_seconds(db_session, client)
    with ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            launch, token = queued_launch(db_session, run_id=f"round-{number}"), str(uuid4())
            worker = kind(client, launch)

            def requeue(launch=launch, token=token):
                given_back = give_back(launch)
                if given_back:
                    queue_anew(launch, token)
                return given_back

            requeued, answer = race(pool, worker, seconds * (number % STEPS) / STEPS, requeue)

            row = task_instance(db_session, launch.subject_id)
            if requeued:
                assert_refused(answer, "launch_superseded")
                assert (row.state, row.external_executor_id) == ("queued", token)
                assert_refused(worker.run(), "launch_superseded")
                assert not launch_row(db_session, launch.token).was_claimed
            else:
                assert answer.status_code == 200, answer.text
                assert (row.state, row.external_executor_id) == ("running", launch.token)
            print(f"round {number}: {'re-queue' if requeued else 'claim'}")  # noqa: T201 - for the record


def test_an_old_token_never_starts_a_scheduled_task(db_session, client):
    """After a deferral the task carries its old token until it is queued again."""
    seconds = typical_seconds(db_session, client)
    with ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            launch = queued_launch(db_session, run_id=f"round-{number}")
            assert give_back(launch)
            worker, token = guarded(client, launch), str(uuid4())

            def requeue(launch=launch, token=token):
                queue_anew(launch, token)

            _, answer = race(pool, worker, seconds * (number % STEPS) / STEPS, requeue)

            assert_refused(answer, "launch_superseded")
            assert_refused(worker.run(), "launch_superseded")
            row = task_instance(db_session, launch.subject_id)
            assert (row.state, row.external_executor_id) == ("queued", token)
            assert worker.but(header=token, claim=token).run().status_code == 200
