# SPDX-License-Identifier: Apache-2.0
"""K2: a launch waits in the executor, and the same scheduler revokes it as stuck and queues it again.

The UUID and the try are the same. Right: one pod, of the newer launch.
"""

from __future__ import annotations

import threading

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy, requeueing
from tests.support import field_dispatching as on
from tests.support.service_dispatching import queue_again

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


def revoke_and_queue_again(executor, token):
    subject = run.launch_of(token).subject_id
    requeueing.revoke_stuck(executor, subject)
    return queue_again(executor, subject)


def assert_one_pod_of(field, executor, old, new):
    executor.drive(lambda: run.launch_of(new).external_id and on.settled(old), "the newer one is sent")
    executor.drive(lambda: len(field.kubelet.pods()) == 1, "no other pod is left")
    assert field.kubelet.name_of(new) in run.launch_of(new).external_id
    assert run.launch_of(old).state is LaunchState.REVOKED
    assert not run.claim(old)
    assert run.claim(new)
    assert executor.told == []
    assert len(executor.running) == 1


def test_it_waits_for_the_api_server(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.answer(429, **{"Retry-After": "1"}))
    executor = on.started_executor(field, through=proxy)
    old = run.queue_task(executor, queue=on.KUBERNETES_QUEUE)
    executor.drive(lambda: proxy.count("POST", "/pods") and executor.task_queue, "it was refused and waits")
    new = revoke_and_queue_again(executor, old)
    assert_one_pod_of(field, executor, old, new)
    assert proxy.count("POST", "/pods") == 2


def test_it_is_being_created(field):
    proxy = field.proxy()
    answered = threading.Event()
    proxy.on("POST", "/pods", fault_proxy.delay_answer(answered))
    executor = on.started_executor(field, through=proxy)
    old = run.queue_task(executor, queue=on.KUBERNETES_QUEUE)
    executor.drive(field.kubelet.pods, "the pod is made, but nobody says so")
    new = revoke_and_queue_again(executor, old)
    executor.drive(lambda: run.launch_of(new).external_id, "the newer one is sent")
    answered.set()
    assert_one_pod_of(field, executor, old, new)
