# SPDX-License-Identifier: Apache-2.0
"""K6: a pod that is given up before it has ended may still start: after its claim it says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from dispatcher.backends.base import Observation
from dispatcher.dispatch.relaunch import pause_before
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


def given_up(token):
    return Observation(token, ok=False, reason="ErrImagePull", by_infrastructure=True, given_up=True)


def queue(executor):
    token = run.queue_task(executor, queue="kubernetes")
    assert run.loop(executor) == {}
    return token


def newest(executor):
    (flight,) = executor.dispatcher.in_flight()
    return flight.token


def test_it_was_claimed_before_it_was_given_up():
    executor = run.started_executor()
    token = queue(executor)
    assert run.claim(token, "nonce:pod/start")
    executor.kubernetes.end(replace(given_up(token), claimant="nonce:pod"))
    assert run.loop(executor) == run.loop(executor) == {}
    assert run.launch_of(token).state is LaunchState.CLAIMED
    assert (executor.slots_occupied, executor.kubernetes.revoked) == (1, set())


def test_it_is_stopped_when_another_takes_its_place():
    executor = run.started_executor()
    token = queue(executor)
    executor.kubernetes.end(given_up(token))
    for _ in range(4):
        assert run.loop(executor) == {}
    assert executor.kubernetes.revoked == {token}
    assert executor.kubernetes.sends == [token, newest(executor)]
    assert executor.slots_occupied == 1
    assert not run.claim(token)


def test_the_second_relaunch_in_a_row_waits_a_while():
    executor = run.started_executor()
    executor.kubernetes.end(given_up(queue(executor)))
    run.loop(executor)
    run.loop(executor)
    second = newest(executor)
    executor.kubernetes.end(given_up(second))
    run.loop(executor)
    run.loop(executor)
    assert newest(executor) not in executor.kubernetes.sends
    assert run.launch_of(newest(executor)).state is LaunchState.ISSUED
    assert executor.slots_occupied == 1
    assert [pause_before(number) for number in (1, 2, 3, 4)] == [0, 10, 20, 40]


def test_its_own_failure_is_not_launched_again():
    executor = run.started_executor()
    token = queue(executor)
    executor.kubernetes.end(replace(given_up(token), by_infrastructure=False))
    ((state, info),) = run.loop(executor).values()
    assert (state, info) == ("failed", "ErrImagePull")
    assert run.launch_of(token).state is LaunchState.FAILED


def test_a_failing_database_leaves_it_for_the_next_heartbeat(monkeypatch):
    executor = run.started_executor()
    token = queue(executor)
    executor.kubernetes.end(given_up(token))
    failing = iter([True])

    def session(working=executor.dispatcher._relauncher.session):
        if next(failing, False):
            raise OperationalError("SELECT 1", {}, Exception("the database is away"))
        return working()

    relauncher = replace(executor.dispatcher._relauncher, session=session)
    monkeypatch.setattr(executor.dispatcher, "_relauncher", relauncher)
    assert run.loop(executor) == {}
    assert run.launch_of(token).state is LaunchState.SUBMITTED
    run.loop(executor)
    assert run.launch_of(token).state is LaunchState.SUPERSEDED


def test_a_task_that_stays_queued_is_told_why():
    executor = run.started_executor()
    token = queue(executor)
    executor.kubernetes.waiting[token] = "Unschedulable: 0/3 nodes are available"
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == token))
        executor.revoke_task(ti=ti)
    assert run.launch_of(token).end_reason == (
        "revoked by the scheduler: stuck in queued; Unschedulable: 0/3 nodes are available"
    )
    assert [(one.event, one.extra) for one in executor._task_event_logs] == [
        ("launch stuck", "Unschedulable: 0/3 nodes are available")
    ]
