# SPDX-License-Identifier: Apache-2.0
"""K9: a user marks the task failed or success while its pod is pending.

Right: the pod ends cleanly, and no event contradicts the user.
"""

from __future__ import annotations

import pytest

from dispatcher.compat import task_key
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy
from tests.support import field_dispatching as on

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


@pytest.mark.parametrize(
    ("state", "disturbed"),
    [pytest.param("success", False, id="success"), pytest.param("failed", True, id="failed, with faults")],
)
def test_k9_the_pod_goes_and_nothing_is_told(field, state, disturbed):
    proxy = field.proxy()
    executor = on.started_executor(field, through=proxy)
    marked, other = on.launch_pod(executor, task_id="marked"), on.launch_pod(executor, task_id="other")
    if disturbed:
        proxy.on("DELETE", "/pods/", fault_proxy.reset)
        proxy.on("GET", "watch=True", fault_proxy.expired_event)
    run.set_task(marked, state=state)
    executor.dispatcher.sweep_soon()
    executor.drive(lambda: field.kubelet.pods(marked) == [], "the pod is gone")
    # It cannot start any more, wherever its deletion has got to.
    assert not run.claim(marked)
    executor.drive(lambda: on.settled(marked), "its launch has settled")
    launch = run.launch_of(marked)
    assert (launch.state, launch.was_claimed) == (LaunchState.DROPPED, False)
    assert executor.running == {task_key(run.launch_of(other))}
    assert len(field.kubelet.pods(other)) == 1
    assert executor.told == []


def test_k9_a_pod_that_starts_at_that_moment_is_refused_and_its_end_is_not_told(field):
    executor = on.started_executor(field)
    token = on.launch_pod(executor)
    name = field.kubelet.name_of(token)
    run.set_task(token, state="success")
    # Refused at its claim, the worker ends with exit code 0; another might crash on the way there.
    assert not run.claim(token)
    field.kubelet.end(name, 1)
    executor.drive(lambda: on.settled(token), "its launch has settled")
    executor.drive(lambda: field.kubelet.pods() == [], "the pod is gone")
    assert executor.told == []
