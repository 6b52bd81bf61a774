# SPDX-License-Identifier: Apache-2.0
"""A10: the pod of a callback is deleted by hand while it runs. Right: FAILED with a reason, and once."""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import gate
from tests.support import service_dispatching as run
from tests.support.dispatching import loop, queue_callback

pytestmark = [pytest.mark.needs("redis", "node"), pytest.mark.slow, pytest.mark.timeout(400)]

CALLBACK = f"{gate.__name__}.pass_through"


@pytest.fixture
def callbacks_in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


def test_it_is_failed_with_a_reason(callbacks_in_pods, pods, executor, airflow_home):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    queue_callback(executor, callback_id)
    told = list(loop(executor).items())
    (launch,) = run.launches_of(callback_id)
    told += run.drive(executor, lambda: pods.marks() == ["began"], "the callback runs")
    (name,) = pods.names()

    pods.delete(name)
    told += run.drive(executor, lambda: executor.slots_occupied == 0, "its slot is free")
    told += loop(executor).items()

    ((key, (state, info)),) = dict(told).items()
    assert (key.id, state) == (str(callback_id), "failed")
    assert info.startswith("outcome unknown: the callback's worker ended without reporting a result: ")
    assert name in info or "exit code" in info
    launches = run.launches_of(callback_id)
    assert [one.token for one in launches] == [launch.token]
    assert launches[0].state in (LaunchState.LOST, LaunchState.FAILED)
    assert pods.names() == []
