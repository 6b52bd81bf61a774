# SPDX-License-Identifier: Apache-2.0
"""A5: one scheduler dies after another with the pod of a callback pending, and with the pod running.

Right: the next one adopts the pod each time; the callback is run once and succeeds; the pod is removed.
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import gate
from tests.support import service_dispatching as run
from tests.support.dispatching import launch_of, loop, queue_callback

pytestmark = [pytest.mark.needs("redis", "node"), pytest.mark.slow, pytest.mark.timeout(400)]

CALLBACK = f"{gate.__name__}.pass_through"


@pytest.fixture
def callbacks_in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


def take_over(executor, token):
    """Look for what dead schedulers left, as soon as one is known to be dead."""
    executor.dispatcher.adopt_soon()
    run.drive(executor, lambda: launch_of(token).scheduler_job_id == str(executor.job_id), "it is taken over")


def test_the_next_scheduler_goes_on(callbacks_in_pods, pods, configured, airflow_home):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    with run.started_executor() as first:
        queue_callback(first, callback_id)
        assert loop(first) == {}
        (launch,) = run.launches_of(callback_id)
        run.drive(first, lambda: pods.names() != [], "the pod is made")
    run.die(first)

    with run.started_executor() as second:
        take_over(second, launch.token)
        told = run.drive(second, lambda: pods.marks() == ["began"], "the callback runs")
        assert second.slots_occupied == 1
    run.die(second)

    with run.started_executor() as third:
        take_over(third, launch.token)
        pods.open_gate()
        told += run.drive_to_the_end(third, launch.token)
        told += run.drive(third, lambda: pods.names() == [], "the pod is removed")
        assert third.slots_occupied == 0

    assert told == []
    assert run.callback_row(callback_id).state == "success"
    assert [one.state for one in run.launches_of(callback_id)] == [LaunchState.SUCCEEDED]
    assert pods.marks() == ["began", "ended"]
    assert len(pods.history().created) == 1
