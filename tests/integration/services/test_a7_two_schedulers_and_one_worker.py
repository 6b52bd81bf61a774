# SPDX-License-Identifier: Apache-2.0
"""A7: two schedulers queue the same callback row and send it. The body runs once, and all slots are freed."""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import guarded_callbacks
from tests.support import service_dispatching as run
from tests.support.celery_backend import messages
from tests.support.dispatching import launch_of, loop, queue_callback

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(400)]

CALLBACK = f"{guarded_callbacks.__name__}.succeed"


@pytest.fixture
def executors(configured):
    configured.setenv("AIRFLOW__DISPATCHER__CALLBACK_QUEUE", run.PARKED)
    with run.started_executor() as first, run.started_executor() as second:
        yield first, second


def test_two_messages_and_one_body(executors, airflow_home, broker, worker):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    for executor in executors:
        queue_callback(executor, callback_id)
    told = [event for executor in executors for event in loop(executor).items()]
    tokens = [launch.token for launch in run.launches_of(callback_id)]
    assert len(tokens) == 2
    assert {one["headers"]["id"] for one in messages(broker, run.PARKED)} == set(tokens)

    for token in tokens:
        run.HeldMessage(broker, token).deliver("callbacks")
    worker.wait_for(lambda: run.callback_row(callback_id).state == "success")
    worker.wait_idle()
    for executor, token in zip(executors, tokens, strict=True):
        executor.dispatcher.sweep_soon()
        told += run.drive_to_the_end(executor, token)

    assert worker.take_marks() == ["callback"]
    states = sorted(launch_of(token).state for token in tokens)
    assert states == [LaunchState.DROPPED, LaunchState.SUCCEEDED]
    assert [executor.slots_occupied for executor in executors] == [0, 0]
    assert run.callback_row(callback_id).state == "success"
    assert {state for _, (state, _) in told} <= {"success"}, "no outcome but the true one"
