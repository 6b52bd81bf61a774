# SPDX-License-Identifier: Apache-2.0
"""K11: the scheduler restarts while pods are pending, running, succeeded and failed.

Right: pending and running ones are adopted; finished ones are reported and removed; no task is run again.
"""

from __future__ import annotations

import pytest
from airflow.utils.state import TaskInstanceState

from dispatcher.backends.kubernetes.options import WatchTimes
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy
from tests.support import field_dispatching as on

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]

FAST = WatchTimes(watch=2, silence=3, connect=2, shortest_round=0.1, first_pause=0.1, longest_pause=0.5)


def disturb(proxy) -> None:
    """Let every kind of call of the successor fail in some way before it succeeds."""
    proxy.on("GET", "watch=True", fault_proxy.expired_event)
    proxy.on("GET", "watch=True", fault_proxy.cut_in_a_line)
    proxy.on("GET", "/pods?", fault_proxy.answer(500))
    proxy.on("GET", "/pods?", fault_proxy.reset)
    proxy.on("DELETE", "/pods/", fault_proxy.swallow)
    proxy.on("DELETE", "/pods/", fault_proxy.answer(503))


@pytest.mark.parametrize("disturbed", [pytest.param(False, id="plain"), pytest.param(True, id="faults")])
def test_k11_pods_in_every_state_are_taken_over(field, disturbed):
    before = on.started_executor(field)
    names = ("pending", "running", "succeeded", "failed")
    tokens = {name: on.launch_pod(before, task_id=name) for name in names}
    for name in names[1:]:
        on.start_and_claim(field, tokens[name])
    pods = {name: field.kubelet.name_of(token) for name, token in tokens.items()}
    on.crash(before)
    # While nobody looks, one worker reports its success, and one is killed before it can.
    run.set_task(tokens["succeeded"], state="success")
    field.kubelet.end(pods["succeeded"], 0)
    field.kubelet.end(pods["failed"], 137, reason="OOMKilled")

    through = field.proxy() if disturbed else None
    if through is not None:
        disturb(through)
    after = on.started_executor(field, through=through, watch_times=FAST)
    assert on.orphan_check(after) == 0
    after.drive(lambda: run.launch_of(tokens["failed"]).state is LaunchState.FAILED, "the failure is seen")
    after.drive(lambda: after.told, "Airflow hears of it")
    run.set_task(tokens["failed"], state="up_for_retry")
    after.drive(lambda: on.settled(tokens["succeeded"], tokens["failed"]), "both have settled")

    # Told again in each loop until Airflow has heard it, and nothing else is told.
    assert {(key.task_id, state) for key, state, _info in after.told} == {
        ("failed", TaskInstanceState.FAILED)
    }
    assert "OOMKilled" in after.told[0][2]
    # A failed pod is kept by default, and marked as done.
    left = {pods["pending"], pods["running"], pods["failed"]}
    after.drive(lambda: _names(field) == left, "the finished pod is removed")
    after.drive(lambda: _done(field) == {pods["failed"]}, "the failed pod is marked")
    told = len(after.told)
    states = [launch.state for launch in on.launches(tokens["pending"], tokens["running"])]
    assert states == [LaunchState.SUBMITTED, LaunchState.CLAIMED]
    # Fault 68: the slots taken are those of the pods that have not ended.
    assert {key.task_id for key in run.named(after.running).values()} == {"pending", "running"}
    assert after.slots_occupied == 2

    # What was adopted is followed to its end.
    on.start_and_claim(field, tokens["pending"])
    for name in ("pending", "running"):
        run.set_task(tokens[name], state="success")
        field.kubelet.end(pods[name], 0)
    after.drive(lambda: on.settled(*tokens.values()), "all have settled")
    assert len(after.told) == told
    after.drive(lambda: _names(field) == {pods["failed"]}, "all finished pods are removed")
    assert after.slots_occupied == 0
    assert {launch.state for launch in on.launches(tokens["pending"], tokens["running"])} == {
        LaunchState.SUCCEEDED
    }


def _names(field) -> set[str]:
    return {pod.metadata.name for pod in field.kubelet.pods()}


def _done(field) -> set[str]:
    return {pod.metadata.name for pod in field.kubelet.pods() if "airflow-launch-done" in pod.metadata.labels}
