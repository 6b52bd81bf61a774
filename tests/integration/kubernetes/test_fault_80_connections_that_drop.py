# SPDX-License-Identifier: Apache-2.0
"""Known fault 80: a dropped connection, or a 500, takes the scheduler down.

Right: it is logged and tried again; scheduler and Celery are unaffected. Creation is in K4's tests.
"""

from __future__ import annotations

import logging

import pytest

from dispatcher.backends.kubernetes.options import WatchTimes
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy
from tests.support import field_dispatching as on

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]

FAST = WatchTimes(watch=2, silence=3, connect=2, shortest_round=0.1, first_pause=0.1, longest_pause=0.5)

FAULTS = {
    "reset": fault_proxy.reset,
    "500": fault_proxy.answer(500),
    "answer lost": fault_proxy.swallow,
    "no JSON": fault_proxy.garbage,
}
CALLS = {
    "watch=True": ("GET", 2),
    "/pods?": ("GET", 2),
    "/pods/": ("PATCH", 1),
    "-good-": ("DELETE", 1),
}
"""What is in the path of each call, its verb, and how often it fails."""


@pytest.mark.parametrize("fault", list(FAULTS))
def test_fault_80_every_call_but_creation(field, fault, caplog):
    proxy = field.proxy()
    for part, (method, times) in CALLS.items():
        # Of a watch, nothing ever ends that could be swallowed.
        chosen = fault_proxy.reset if (part, fault) == ("watch=True", "answer lost") else FAULTS[fault]
        proxy.on(method, part, chosen, times)
    executor = on.started_executor(field, through=proxy, watch_times=FAST)
    good, bad = (on.launch_pod(executor, task_id=name) for name in ("good", "bad"))
    for token, exit_code in ((good, 0), (bad, 1)):
        on.start_and_claim(field, token)
        run.set_task(token, state="success" if token == good else "failed")
        field.kubelet.end(field.kubelet.name_of(token), exit_code)
    on_celery = run.queue_task(executor, task_id="on_celery")
    run.loop(executor)
    assert executor.celery.sends == [on_celery]
    executor.drive(lambda: on.settled(good, bad), "both have settled")
    executor.drive(lambda: _left(field) == ["True"], "one is deleted, and one marked as done")
    assert [one.state for one in on.launches(good, bad)] == [LaunchState.SUCCEEDED, LaunchState.FAILED]
    assert executor.told == []
    assert [rule.part for rule in proxy.rules if rule.times == CALLS[rule.part][1]] == []
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


def _left(field):
    return [pod.metadata.labels.get("airflow-launch-done") for pod in field.kubelet.pods()]


@pytest.mark.parametrize("fault", ["reset", "500"])
def test_fault_80_the_log(field, fault):
    proxy = field.proxy()
    proxy.on("GET", "/log", FAULTS[fault], times=1)
    backend = field.backend(job=None, through=proxy)
    messages, lines = backend.open_log(f"{field.namespace}/no-such-pod")
    assert list(lines) == []
    assert len(messages) == 1
    assert "no-such-pod" in messages[0]
    assert proxy.rules[0].times == 0
