# SPDX-License-Identifier: Apache-2.0
"""A scheduler dies; the next one takes over its launches (rule 18; C4, C5, K8, K11 without the services)."""

from __future__ import annotations

import pytest
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select, update

from dispatcher.backends.base import Observation
from dispatcher.compat import task_key
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


def die(executor) -> None:
    with create_session(scoped=False) as session:
        session.execute(update(Job).where(Job.id == executor.job_id).values(state="failed"))


def orphan_check(executor) -> int:
    with create_session(scoped=False) as session:
        runner = SchedulerJobRunner(job=session.get(Job, executor.job_id), executors=[executor])
        return runner.adopt_or_reset_orphaned_tasks(session=session)


def state_of(token: str) -> str | None:
    with create_session(scoped=False) as session:
        return session.scalar(select(TaskInstance.state).where(TaskInstance.external_executor_id == token))


def test_c4_died_after_queued_and_before_the_send():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    die(dead)

    assert orphan_check(live) == 0
    run.loop(live)
    run.loop(live)

    assert live.celery.sends == [token]
    assert run.launch_of(token).scheduler_job_id == str(live.job_id)
    assert live.slots_occupied == 1


def test_c5_died_right_after_the_send():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    die(dead)

    assert orphan_check(live) == 0
    run.loop(live)
    assert token in live.celery.watched
    assert run.claim(token)
    run.loop(live)

    assert state_of(token) == "running"
    run.set_task(token, state="success")
    live.celery.end(Observation(token, ok=True, claimant="nonce:one"))
    run.loop(live)
    assert live.slots_occupied == 0
    assert run.launch_of(token).state is LaunchState.SUCCEEDED


def test_a_running_task_is_never_reset():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    run.claim(token)
    die(dead)

    assert orphan_check(live) == 0
    run.loop(live)

    assert state_of(token) == "running"
    assert live.slots_occupied == 1
    assert run.launch_of(token).scheduler_job_id == str(live.job_id)


def test_a_running_task_that_no_launch_of_ours_started_is_left_alone():
    from tests.support import rows

    dead, live = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        token = rows.make_task_instance(
            session, state="running", queued_by_job_id=dead.job_id
        ).external_executor_id
    die(dead)

    assert orphan_check(live) == 0
    run.loop(live)
    assert state_of(token) == "running"
    assert live.slots_occupied == 0


def test_a_queued_task_without_a_launch_is_handed_back():
    from tests.support import rows

    dead, live = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        rows.make_task_instance(session, queued_by_job_id=dead.job_id)
    die(dead)

    assert orphan_check(live) == 1


def test_k11_a_task_that_reported_success_before_its_scheduler_died():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    run.claim(token)
    run.set_task(token, state="success")
    die(dead)

    assert orphan_check(live) == 0
    live.dispatcher.adopt_soon()
    run.loop(live)
    live.celery.end(Observation(token, ok=True, claimant="nonce:one"))
    for _ in range(3):
        assert run.loop(live) == {}

    assert run.launch_of(token).state is LaunchState.SUCCEEDED
    assert run.launch_of(token).settled_at is not None
    assert live.slots_occupied == 0


def test_k11_a_launch_that_had_ended_and_was_not_settled():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    run.claim(token)
    run.set_task(token, state="success")
    dead.celery.end(Observation(token, ok=True, claimant="nonce:one"))
    dead.dispatcher.sync()
    assert run.launch_of(token).settled_at is None
    die(dead)

    live.dispatcher.adopt_soon()
    for _ in range(3):
        assert run.loop(live) == {}
    assert run.launch_of(token).settled_at is not None


def test_a5_a_callback_whose_scheduler_died_before_it_was_sent():
    from tests.support import rows

    dead, live = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(dead, callback_id)
    die(dead)

    live.dispatcher.adopt_soon()
    run.loop(live)
    run.loop(live)
    (token,) = live.celery.sends
    assert run.launch_of(token).subject_id == str(callback_id)
    assert live.slots_occupied == 1


def test_a_scheduler_that_is_declared_dead_takes_over_nothing():
    dead, also_dead = run.started_executor(), run.started_executor()
    token = run.queue_task(dead)
    run.loop(dead)
    run.claim(token)
    die(dead)
    die(also_dead)

    also_dead.dispatcher.adopt_soon()
    run.loop(also_dead)
    assert run.launch_of(token).scheduler_job_id == str(dead.job_id)


def test_k8_a_deposed_scheduler_launches_and_reports_nothing():
    stalled, live = run.started_executor(), run.started_executor()
    waiting = run.queue_task(stalled, task_id="waiting")
    sent = run.queue_task(stalled, task_id="sent")
    stalled.dispatcher.submit([key for key in stalled.task_queue if key == task_key(run.launch_of(sent))])
    die(stalled)
    orphan_check(live)
    run.loop(live)

    stalled.celery.sends.clear()
    stalled.celery.end(Observation(sent, ok=False, reason="old news"))
    stalled.dispatcher.sweep_soon()
    events = run.loop(stalled)

    assert stalled.celery.sends == []
    assert events == {}
    assert stalled.slots_occupied == 0
    assert {run.launch_of(token).scheduler_job_id for token in (waiting, sent)} == {str(live.job_id)}


def test_k8_what_the_scheduler_told_a_deposed_executor_is_not_reported():
    stalled, live = run.started_executor(), run.started_executor()
    token = run.queue_task(stalled)
    run.loop(stalled)
    run.claim(token)
    (key,) = stalled.running
    die(stalled)
    orphan_check(live)
    run.loop(live)

    stalled.change_state(key, "failed", "heartbeat timeout")

    assert run.loop(stalled) == {}
    assert run.launch_of(token).state is LaunchState.CLAIMED
    assert live.slots_occupied == 1


@pytest.mark.parametrize("foreign", ["123", "airflow/guarded-task-abcdefgh"], ids=["job number", "pod name"])
def test_fault_2_an_id_of_another_backend_is_handed_back(foreign):
    from tests.support import rows

    dead, live = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        rows.make_task_instance(session, queued_by_job_id=dead.job_id, token=foreign)
    die(dead)

    assert orphan_check(live) == 1
    run.loop(live)
    assert live.slots_occupied == 0
    assert (live.celery.sends, live.celery.watched) == ([], set())


def test_fault_2_a_launch_is_watched_in_the_backend_that_has_it():
    dead, live = run.started_executor(), run.started_executor()
    token = run.queue_task(dead, queue="kubernetes")
    run.loop(dead)
    die(dead)

    assert orphan_check(live) == 0
    run.loop(live)
    assert live.kubernetes.watched == {token}
    assert live.celery.watched == set()
