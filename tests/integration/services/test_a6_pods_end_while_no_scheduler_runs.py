# SPDX-License-Identifier: Apache-2.0
"""A6: the pods of callbacks succeed, or fail, while no scheduler runs.

Right: the true results are recorded, then the pods are removed.
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import gate, guarded_callbacks
from tests.support import service_dispatching as run
from tests.support.backend_harness import eventually
from tests.support.dispatching import loop, queue_callback

pytestmark = [pytest.mark.needs("redis", "node"), pytest.mark.slow, pytest.mark.timeout(400)]

SUCCEED = f"{guarded_callbacks.__name__}.succeed"
FAIL = f"{guarded_callbacks.__name__}.fail"
GATED = f"{gate.__name__}.pass_through"


@pytest.fixture
def callbacks_in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


def test_the_next_scheduler_finds_the_true_results(callbacks_in_pods, pods, configured, airflow_home):
    ids = [run.new_callback(airflow_home, path) for path in (SUCCEED, FAIL, GATED)]
    with run.started_executor() as first:
        for callback_id in ids:
            queue_callback(first, callback_id)
        assert loop(first) == {}
        tokens = [run.launches_of(callback_id)[0].token for callback_id in ids]
        run.drive(first, lambda: all(one.external_id for one in launches(ids)), "the pods are made")
        succeeds, fails, killed = [one.external_id.partition("/")[2] for one in launches(ids)]
    run.die(first)

    eventually(lambda: "began" in pods.marks(), "the gated one runs", run.END_SECONDS)
    pods.delete(killed)
    for name in (succeeds, fails):
        eventually(lambda name=name: pods.exit_code(name) is not None, f"{name} ends", run.END_SECONDS)
    assert sorted(pods.names()) == sorted([succeeds, fails]), "nobody removes them meanwhile"

    with run.started_executor() as second:
        second.dispatcher.adopt_soon()
        told = [event for token in tokens[:2] for event in run.drive_to_the_end(second, token)]
        told += run.drive(second, lambda: launches(ids)[2].state is LaunchState.LOST, "the third is lost")
        told += loop(second).items()
        run.drive(second, lambda: pods.names() == [], "the pods are removed")
        assert second.slots_occupied == 0

    assert [run.callback_row(one).state for one in ids[:2]] == ["success", "failed"]
    assert "ValueError: the pager is unreachable" in run.callback_row(ids[1]).output
    ((key, (state, info)),) = dict(told).items()
    assert (key.id, state) == (str(ids[2]), "failed")
    assert info.startswith("outcome unknown: the callback's worker ended without reporting a result: pod ")
    assert [len(run.launches_of(one)) for one in ids] == [1, 1, 1]


def launches(ids):
    return [run.launches_of(one)[0] for one in ids]
