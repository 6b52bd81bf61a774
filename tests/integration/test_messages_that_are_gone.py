# SPDX-License-Identifier: Apache-2.0
"""A launch whose message is gone, by positive evidence, is sent again under the same token (rule 6)."""

from __future__ import annotations

import pytest
from airflow.utils.session import create_session

from dispatcher.dispatch import search
from dispatcher.dispatch.tour import Tour
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")


@pytest.fixture
def executor():
    return run.started_executor()


def wait_for_long(executor, token):
    """Make a launch one that was sent long ago, and let the executor see it."""
    run.sent_long_ago(executor, token, 2 * search.PATIENCE)
    executor.dispatcher.sweep_soon()


def events(executor):
    return [(one.event, one.extra) for one in executor._task_event_logs]


def lose(executor, token):
    """Let the backend find that a message is gone, and run the loop until that had every chance to count."""
    wait_for_long(executor, token)
    executor.celery.lost = {token}
    run.loop(executor)
    run.loop(executor)


def test_it_is_sent_again_under_the_same_token_and_keeps_its_slot(executor):
    token = run.queue_task(executor)
    run.loop(executor)

    lose(executor, token)

    assert executor.celery.sends == [token, token]
    assert executor.slots_occupied == 1
    launch = run.launch_of(token)
    assert launch.state is LaunchState.SUBMITTED
    assert launch.submitted_at > rows.utcnow() - search.PATIENCE, (
        "it has to wait again before it is looked for"
    )
    assert [event for event, _ in events(executor)] == ["launch sent again"]
    assert run.claim(token), "whichever message comes first"


def test_a_callback_is_sent_again_too(executor):
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(executor, callback_id)
    run.loop(executor)
    (token,) = executor.celery.sends

    lose(executor, token)

    assert executor.celery.sends == [token, token]
    assert executor.slots_occupied == 1


def test_one_that_was_claimed_is_left_alone(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    wait_for_long(executor, token)
    run.claim(token)

    executor.celery.lost = {token}
    run.loop(executor)
    run.loop(executor)

    assert executor.celery.looked_for == {}
    assert executor.celery.sends == [token]


def test_one_that_is_claimed_before_the_send_is_left_alone(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    wait_for_long(executor, token)
    executor.celery.lost = {token}
    executor.sync()
    run.claim(token)
    run.loop(executor)

    assert executor.celery.sends == [token]
    assert run.launch_of(token).state is LaunchState.CLAIMED
    run.loop(executor)
    assert executor.slots_occupied == 1, "it runs, and the sweep found it"


def test_one_that_was_sent_just_now_is_not_looked_for(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    executor.dispatcher.sweep_soon()
    run.loop(executor)
    assert executor.celery.looked_for == {}
    wait_for_long(executor, token)
    run.loop(executor)
    assert executor.celery.looked_for == {token: "default"}


def test_a_queue_that_loses_everything_is_not_filled_for_ever(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    for _ in range(search.RESENDS + 2):
        lose(executor, token)
    assert executor.celery.sends == [token] * (1 + search.RESENDS)


def test_a_database_error_sends_nothing_and_ends_nothing(executor, monkeypatch):
    from sqlalchemy.exc import OperationalError

    token = run.queue_task(executor)
    run.loop(executor)

    def fail(*_):
        raise OperationalError("select", {}, Exception("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(search, "rebuild_workloads", fail)
        # More often than it may be sent again: what was not sent does not count.
        for _ in range(search.RESENDS + 1):
            lose(executor, token)
    assert executor.celery.sends == [token]
    assert executor.slots_occupied == 1
    lose(executor, token)
    assert executor.celery.sends == [token, token]


def test_fault_23_a_queue_that_nobody_consumes_is_in_the_event_log_once(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    executor.celery.waiting[token] = "no Celery worker consumes its queue 'default'"
    for _ in range(3):
        wait_for_long(executor, token)
        run.loop(executor)
    assert events(executor) == [("launch waits", "no Celery worker consumes its queue 'default'")]


def test_of_one_that_was_claimed_without_memory_knowing_nobody_is_told(executor, monkeypatch):
    token = run.queue_task(executor)
    run.loop(executor)
    wait_for_long(executor, token)
    run.loop(executor)
    run.claim(token)
    monkeypatch.setattr(Tour, "page", lambda *_: None)
    executor.celery.waiting[token] = "no Celery worker consumes its queue 'default'"
    executor.dispatcher.sweep_soon()
    run.loop(executor)
    assert executor.celery.looked_for == {token: "default"}, "memory takes it for one that waits"
    assert events(executor) == []


def test_fault_23_what_timed_out_in_such_a_queue_frees_its_slots():
    """Tasks fill every slot from a queue that nobody consumes; Airflow's time-out revokes them."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    executor = run.started_executor()
    executor.parallelism = 2
    stuck = [run.queue_task(executor, queue="idle", task_id=f"stuck_{n}") for n in range(2)]
    run.loop(executor)
    served = run.queue_task(executor, task_id="served")
    run.loop(executor)
    assert executor.celery.sends == stuck, "there is no slot left"

    with create_session(scoped=False) as session:
        for ti in session.scalars(select(TaskInstance).where(TaskInstance.external_executor_id.in_(stuck))):
            executor.revoke_task(ti=ti)
            ti.state = "failed"
    assert executor.slots_available == 1, "the served one alone holds a slot"
    run.loop(executor)
    run.loop(executor)

    assert executor.celery.sends == [*stuck, served]
    assert executor.celery.revoked == set(stuck)
    assert len(executor.running) == 1
