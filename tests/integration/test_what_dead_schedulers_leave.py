# SPDX-License-Identifier: Apache-2.0
"""What a dead scheduler leaves beside queued and running tasks, and rows that changed meanwhile (rule 18)."""

from __future__ import annotations

import pytest
from airflow.jobs.job import Job
from airflow.models.callback import ExecutorCallback
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import CallbackState
from sqlalchemy import delete, select, update

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.recovery import adopt
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")


def die(executor) -> None:
    with create_session(scoped=False) as session:
        session.execute(update(Job).where(Job.id == executor.job_id).values(state="failed"))


def queued_callback(executor):
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(executor, callback_id)
    return callback_id


def test_a_sent_launch_of_a_task_that_finished_meanwhile():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    # A person marks it while its pod is pending: no adoption of task instances leads to the launch.
    run.set_task(token, state="success")
    die(dead)

    for _ in range(3):
        live.dispatcher.adopt_soon()
        assert run.loop(live) == {}

    launch = run.launch_of(token)
    assert launch.state is LaunchState.DROPPED
    assert launch.settled_at is not None
    assert token in live.celery.revoked
    assert live.slots_occupied == 0


def test_an_older_launch_does_not_displace_the_newer_one():
    dead, live = run.started_executor(), run.started_executor()
    old = run.queue_task(dead)
    run.loop(dead)
    assert run.claim(old)
    die(dead)
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == old))
        ti.state, ti.external_executor_id, ti.queued_by_job_id = "queued", None, live.job_id
        session.flush()
        new = run.enqueue(live, session, ti)

    # Nothing is sent in the heartbeat that takes the old launch over.
    parallelism, live.parallelism = live.parallelism, 0
    live.dispatcher.adopt_soon()
    run.loop(live)
    assert run.launch_of(old).scheduler_job_id == str(live.job_id)
    live.parallelism = parallelism
    run.loop(live)

    assert live.celery.sends == [new]
    assert run.launch_of(old).state is LaunchState.SUPERSEDED


def test_a_callback_whose_run_is_gone_frees_its_slot():
    dead, live = run.started_executor(), run.started_executor()
    queued_callback(dead)
    with create_session(scoped=False) as session:
        session.execute(delete(DagRun))
    die(dead)

    live.dispatcher.adopt_soon()
    events = [run.loop(live) for _ in range(2)]

    assert live.slots_occupied == 0
    assert CallbackState.FAILED in [state for some in events for state, _ in some.values()]


def test_a_callback_that_cannot_be_made_again_does_not_hold_up_the_rest():
    dead, live = run.started_executor(), run.started_executor()
    callback_id = queued_callback(dead)
    with create_session(scoped=False) as session:
        callback = session.get(ExecutorCallback, callback_id)
        callback.data = {**callback.data, "dag_run_id": "none"}
    token = run.queue_task(live)
    die(dead)

    live.dispatcher.adopt_soon()
    for _ in range(2):
        run.loop(live)

    assert live.celery.sends == [token]
    assert live.slots_occupied == 1


def test_a_claim_between_two_reads_of_the_adoption_is_not_handed_back():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == token))
        session.expunge(ti)
    assert ti.state == "queued"
    assert run.claim(token)

    with create_session(scoped=False) as session:
        session.add(ti)
        assert adopt([ti], str(live.job_id)) == []
    assert run.launch_of(token).scheduler_job_id == str(live.job_id)


def test_a_task_that_runs_without_a_claim_is_watched_and_not_queued_again():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    # Started through an API server without the fence.
    run.set_task(token, state="running", last_heartbeat_at=rows.utcnow())
    die(dead)

    live.dispatcher.adopt_soon()
    for _ in range(3):
        run.loop(live)

        assert token in live.celery.watched
        assert (len(live.running), len(live.task_queue)) == (1, 0)
    assert live.celery.sends == []
