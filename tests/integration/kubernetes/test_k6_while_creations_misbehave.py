# SPDX-License-Identifier: Apache-2.0
"""K6 through a proxy that misbehaves: a launch is lost and replaced while its own creation is not over yet.

Right: one pod of the new launch; whatever comes of the old one can never claim, and is taken away.
"""

from __future__ import annotations

import socket
import threading

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy
from tests.support import field_dispatching as on
from tests.support.kubernetes_field import container_status

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


def test_k6_lost_while_its_creation_is_underway(field):
    proxy, answered = field.proxy(), threading.Event()
    proxy.on("POST", "/pods", fault_proxy.delay_answer(answered))
    proxy.on("POST", "/pods", fault_proxy.swallow)
    executor = on.started_executor(field, through=proxy)
    old = run.queue_task(executor, queue=on.KUBERNETES_QUEUE)
    executor.drive(lambda: field.kubelet.pods(old), "the pod is made")
    assert run.launch_of(old).external_id is None, "the answer came"

    new = _lose(field, executor, old)
    _assert_one_slot(executor)
    # The old creation ends after all; the new one, whose answer is lost, is asked for again.
    answered.set()
    executor.drive(lambda: run.launch_of(new).external_id, "the new pod is found")
    executor.drive(lambda: not field.kubelet.pods(old) and on.settled(old), "the old pod is gone")
    _assert_one_slot(executor)
    assert not run.claim(old)
    on.start_and_claim(field, new)
    assert executor.told == []


def test_k6_the_old_pod_is_made_after_the_relaunch(field):
    proxy, released, made = field.proxy(), threading.Event(), threading.Event()

    def arrive_late(exchange):
        """Lose the connection at once; the API server gets the request much later."""
        exchange.handler.connection.shutdown(socket.SHUT_RDWR)
        exchange.hang_up()
        released.wait(60)
        exchange.forward().read()
        made.set()

    proxy.on("POST", "/pods", arrive_late)
    executor = on.started_executor(field, through=proxy)
    old = run.queue_task(executor, queue=on.KUBERNETES_QUEUE)
    executor.pod_of(old)
    new = _lose(field, executor, old)
    executor.pod_of(new)
    executor.drive(lambda: not field.kubelet.pods(old) and on.settled(old), "the old pod is gone")

    released.set()
    assert made.wait(30)
    assert field.kubelet.pods(old)
    assert not run.claim(old)

    def gone():
        executor.dispatcher.adopt_soon()
        return not field.kubelet.pods(old)

    executor.drive(gone, "the late pod is taken away")
    assert len(field.kubelet.pods(new)) == 1
    _assert_one_slot(executor)
    assert executor.told == []


def _lose(field, executor, token: str) -> str:
    """Let the image of a launch's pod be missing, and return the launch that takes its place."""
    subject = run.launch_of(token).subject_id
    waiting = {"reason": "ErrImagePull", "message": "the registry does not answer"}
    status = [container_status(waiting=waiting)]
    field.kubelet.set_status(field.kubelet.name_of(token), phase="Pending", containerStatuses=status)
    executor.drive(lambda: run.launch_of(token).state is LaunchState.SUPERSEDED, "it is launched again")
    return on.current_token(subject)


def _assert_one_slot(executor) -> None:
    assert len(executor.running | executor.task_queue.keys()) == 1
    assert executor.slots_occupied == 1
