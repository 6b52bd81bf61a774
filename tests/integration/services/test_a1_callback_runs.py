# SPDX-License-Identifier: Apache-2.0
"""A1: a callback ends SUCCESS: on Celery sent once to the callback queue, on Kubernetes in one pod."""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import BackendName, LaunchState
from tests.support import guarded_callbacks
from tests.support import service_dispatching as run
from tests.support.celery_backend import messages
from tests.support.dispatching import loop, queue_callback

pytestmark = pytest.mark.timeout(400)

CALLBACK = f"{guarded_callbacks.__name__}.succeed"
QUEUE = "callbacks"


def assert_ended(executor, callback_id, backend, told):
    (launch,) = run.launches_of(callback_id)
    assert (launch.state, launch.backend, launch.queue) == (LaunchState.SUCCEEDED, backend, QUEUE)
    assert run.callback_row(callback_id).state == "success"
    assert executor.slots_occupied == 0
    assert told == [], "the callback's worker has told its result"


@pytest.mark.needs("redis")
def test_on_celery(executor, airflow_home, broker, worker):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    worker.app.control.cancel_consumer(QUEUE, reply=True, timeout=10, limit=1)
    queue_callback(executor, callback_id)
    told = list(loop(executor).items())
    (launch,) = run.launches_of(callback_id)
    assert [one["headers"]["id"] for one in messages(broker, QUEUE)] == [launch.token]
    assert messages(broker, "default") == []
    assert executor.slots_occupied == 1

    worker.app.control.add_consumer(QUEUE, reply=True, timeout=10, limit=1)
    told += run.drive_to_the_end(executor, launch.token)

    assert_ended(executor, callback_id, BackendName.CELERY, told)
    assert worker.take_marks() == ["callback"]
    assert worker.log().count(f"execute_workload[{launch.token}] received") == 1
    assert worker.state(launch.token) == "PENDING", "the stored result is removed"


@pytest.fixture
def callbacks_in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


@pytest.mark.needs("redis", "node")
def test_on_kubernetes(callbacks_in_pods, pods, executor, airflow_home):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    queue_callback(executor, callback_id)
    told = list(loop(executor).items())
    (launch,) = run.launches_of(callback_id)
    assert executor.slots_occupied == 1

    told += run.drive_to_the_end(executor, launch.token)
    told += run.drive(executor, lambda: pods.names() == [], "the pod is removed")

    assert_ended(executor, callback_id, BackendName.KUBERNETES, told)
    assert pods.marks() == ["callback"]
    history = pods.history()
    assert len(history.created) == 1, "one pod"
    assert history.created == history.deleted
    assert history.created[0].endswith(launch.token)
