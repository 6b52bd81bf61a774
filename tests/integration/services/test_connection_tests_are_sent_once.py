# SPDX-License-Identifier: Apache-2.0
"""Connection tests run on both backends, and are never sent twice, whatever becomes of the send."""

from __future__ import annotations

import json

import pytest
from airflow.executors import workloads
from airflow.models.connection_test import ConnectionTestRequest
from airflow.utils.session import create_session

from tests.support import field_dispatching as on
from tests.support import service_dispatching as run
from tests.support.celery_backend import messages, take_message
from tests.support.dispatching import loop
from tests.support.kubernetes_field import KubernetesField

pytestmark = pytest.mark.timeout(400)

TURNS = 3
IN_PODS = json.dumps([{"match": {"kind": "test_connection"}, "backend": "kubernetes"}])


def queue_test(executor, queue=None):
    """Queue a connection test as the scheduler does, and return its UUID."""
    with create_session(scoped=False) as session:
        request = ConnectionTestRequest(
            connection_id="tested", conn_type="fs", extra=json.dumps({"path": "/"})
        )
        request.queue = queue
        session.add(request)
        session.flush()
        workload = workloads.TestConnection.make(
            connection_test_id=request.id, connection_id="tested", timeout=60, queue=queue
        )
        executor.queue_workload(workload, session)
        request.state = "queued"
        return request.id


def request_of(test_id):
    with create_session(scoped=False) as session:
        request = session.get(ConnectionTestRequest, test_id)
        return request.state, request.result_message


@pytest.mark.needs("redis")
def test_on_celery_it_runs_once(executor, worker):
    test_id = queue_test(executor)
    run.drive(executor, lambda: request_of(test_id)[0] in ("success", "failed"), "it has a result")
    run.drive(executor, lambda: executor.slots_occupied == 0, "its slot is free")
    assert request_of(test_id)[0] == "success", request_of(test_id)[1]
    assert worker.log().count(f"execute_workload[{test_id}] received") == 1


@pytest.mark.needs("redis")
def test_a_message_that_is_gone_is_not_sent_again(executor, broker, airflow_db):
    test_id = queue_test(executor, queue=run.PARKED)
    loop(executor)
    assert [one["headers"]["id"] for one in messages(broker, run.PARKED)] == [str(test_id)]
    take_message(broker, str(test_id), run.PARKED)
    for _ in range(TURNS):
        executor.dispatcher.sweep_soon()
        loop(executor)
    assert messages(broker, run.PARKED) == []
    assert executor.slots_occupied == 1, "until Airflow gives it up"


@pytest.fixture
def field(kube_namespace, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__ROUTES", IN_PODS)
    field = KubernetesField(kube_namespace, tmp_path)
    yield field
    field.close()


@pytest.mark.needs("kubernetes")
@pytest.mark.parametrize("exit_code", [0, 137], ids=["ends", "is killed"])
def test_in_pods_one_is_made_and_none_again(airflow_db, field, exit_code):
    executor = on.started_executor(field)
    test_id = queue_test(executor)
    executor.drive(field.kubelet.pods, "the pod is made")
    (pod,) = field.kubelet.pods()
    assert pod.metadata.name == f"test-connection-{test_id}"
    assert executor.slots_occupied == 1

    field.kubelet.end(pod.metadata.name, exit_code)
    executor.drive(lambda: executor.slots_occupied == 0, "its slot is free")
    if not exit_code:  # failed pods are kept
        executor.drive(lambda: field.kubelet.pods() == [], "the pod is removed")
    for _ in range(TURNS):
        executor.dispatcher.sweep_soon()
        loop(executor)
    made = {one.metadata.uid for one in field.kubelet.pods()} - {pod.metadata.uid}
    assert made == set(), "it is not made again"
