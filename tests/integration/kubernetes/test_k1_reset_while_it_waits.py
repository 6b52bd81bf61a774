# SPDX-License-Identifier: Apache-2.0
"""K1 (and known fault 67): a launch waits in the executor, and another scheduler resets its task instance.

Right: it is dropped before creation. If the pod was already being created, it can never claim and is taken
away, and nothing is reported for the new launch.
"""

from __future__ import annotations

import threading

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy, requeueing
from tests.support import field_dispatching as on

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]

CASES = {
    "429, another scheduler queues it": (fault_proxy.answer(429, **{"Retry-After": "1"}), {}),
    "quota, a user clears it": (
        fault_proxy.answer(403, "pods are forbidden: exceeded quota: small"),
        {"state": None},
    ),
    "503, a user marks it failed": (fault_proxy.answer(503), {"state": "failed"}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_fault_67_it_is_dropped_before_it_is_created(field, case):
    refusal, step = CASES[case]
    proxy = field.proxy()
    proxy.on("POST", "/pods", refusal)
    executor = on.started_executor(field, through=proxy)
    token = run.queue_task(executor, queue=on.KUBERNETES_QUEUE)
    executor.drive(lambda: proxy.count("POST", "/pods") and executor.task_queue, "it was refused and waits")
    requeueing.reset_elsewhere(token, **step)

    executor.drive(lambda: on.settled(token), "it is dropped")
    assert run.launch_of(token).state is LaunchState.DROPPED
    assert not run.claim(token)
    assert proxy.count("POST", "/pods") == 1
    assert field.kubelet.pods() == []
    assert executor.told == []
    assert (len(executor.task_queue), len(executor.running)) == (0, 0)
    assert executor.dispatcher.in_flight() == []


def test_it_is_being_created_when_it_is_reset(field):
    proxy = field.proxy()
    answered = threading.Event()
    proxy.on("POST", "/pods", fault_proxy.delay_answer(answered))
    executor = on.started_executor(field, through=proxy)
    token = run.queue_task(executor, queue=on.KUBERNETES_QUEUE)
    executor.drive(field.kubelet.pods, "the pod is made, but nobody says so")
    requeueing.reset_elsewhere(token)
    executor.dispatcher.sweep_soon()
    executor.drive(lambda: on.settled(token), "it is dropped")
    assert not run.claim(token), "its pod starts after all"
    answered.set()
    executor.drive(lambda: not field.kubelet.pods(), "its pod is taken away")
    assert executor.told == []
    assert len(executor.running) == 0
