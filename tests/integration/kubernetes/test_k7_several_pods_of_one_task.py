# SPDX-License-Identifier: Apache-2.0
"""K7: several pods carry the same task key. Right: a launch's own pods go with it, and no others."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Artefact, Sent
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy
from tests.support import field_dispatching as on
from tests.support.backend_harness import eventually, make_submission, submit
from tests.support.kubernetes_field import container_status

pytestmark = pytest.mark.needs("kubernetes")

SAME_TASK = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": 1, "try_number": 2}


def send(backend):
    submission = make_submission(**SAME_TASK)
    result = submit(backend, submission)[submission.token]
    assert isinstance(result, Sent)
    return Artefact(submission.token, submission.kind, result.external_id)


def copy_pod(field, token, name):
    """Make another pod that says to be of the same launch, as a person may."""
    (pod,) = field.kubelet.pods(token)
    pod.metadata.name = name
    pod.metadata.uid = pod.metadata.resource_version = pod.metadata.creation_timestamp = None
    pod.status = None
    field.api.create_namespaced_pod(field.namespace, pod)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(None, id="plain"),
        pytest.param(fault_proxy.swallow, id="answer lost"),
        pytest.param(fault_proxy.answer(429, **{"Retry-After": "1"}), id="429"),
    ],
)
def test_k7_revoke_removes_exactly_the_pods_of_the_launch_it_names(field, fault):
    proxy = field.proxy()
    backend = field.backend(through=proxy)
    first, second, third = (send(backend) for _ in range(3))
    copy_pod(field, second.token, "copy")
    kept = {field.kubelet.name_of(one.token) for one in (first, third)}
    seen = eventually(lambda: backend._table.find(second.token)[1:], "the copy is seen")
    assert [one.identity.name for one in seen] == ["copy"]
    if fault is not None:
        proxy.on("DELETE", "/pods/", fault)
    backend.revoke([second])

    def left():
        backend.observe()
        return {pod.metadata.name for pod in field.kubelet.pods()}

    eventually(lambda: left() == kept, "its own pods are gone")


@pytest.mark.usefixtures("airflow_db")
def test_k7_a_second_pod_of_a_launch_neither_ends_it_nor_stays(field):
    executor = on.started_executor(field)
    token = on.launch_pod(executor)
    copy_pod(field, token, "copy")
    executor.drive(lambda: len(executor.pods._table.find(token)) == 2, "the copy is seen")
    # It cannot start, say, while the real one is still pulling its image.
    field.kubelet.end("copy", 1, reason="Error")
    executor.drive(executor.pods.observe, "its end is seen")
    assert [one.outlived for one in executor.pods.observe()] == [True]
    for _ in range(3):
        run.loop(executor)
    assert run.launch_of(token).state is LaunchState.SUBMITTED
    on.start_and_claim(field, token)
    run.set_task(token, state="success")
    field.kubelet.end(field.kubelet.name_of(token), 0)
    executor.drive(lambda: on.settled(token), "it has settled")
    assert run.launch_of(token).state is LaunchState.SUCCEEDED
    executor.drive(lambda: _unmarked(field) == [], "both are removed, or marked as done")
    assert executor.told == []


def _unmarked(field):
    return [pod for pod in field.kubelet.pods() if "airflow-launch-done" not in pod.metadata.labels]


@pytest.mark.usefixtures("airflow_db")
def test_k7_a_second_pod_that_cannot_start_neither_ends_the_launch_nor_keeps_it_open(field):
    executor = on.started_executor(field)
    token = on.launch_pod(executor)
    name = field.kubelet.name_of(token)
    copy_pod(field, token, "copy")
    executor.drive(lambda: len(executor.pods._table.find(token)) == 2, "the copy is seen")
    # The real one starts, and has not claimed yet.
    field.kubelet.set_status(name, phase="Running", containerStatuses=[container_status(running={})])
    fatal = container_status(waiting={"reason": "ErrImageNeverPull", "message": "not here"})
    field.kubelet.set_status("copy", phase="Pending", containerStatuses=[fatal])
    executor.drive(executor.pods.observe, "the copy is given up")
    for _ in range(3):
        run.loop(executor)
    assert run.launch_of(token).state is LaunchState.SUBMITTED
    # Once the real one is lost, there is no other to wait for.
    field.kubelet.end(name, 137, reason="OOMKilled")
    executor.drive(lambda: run.launch_of(token).state is LaunchState.SUPERSEDED, "it is launched again")
    executor.drive(lambda: not field.kubelet.pods(token), "both pods are gone")
