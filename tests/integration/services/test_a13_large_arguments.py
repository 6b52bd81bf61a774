# SPDX-License-Identifier: Apache-2.0
"""A13: the arguments of a callback have 200 KiB.

Right: it runs, or it is FAILED with a message that names the size; tasks are unaffected.
"""

from __future__ import annotations

import pytest
from airflow.models.callback import ExecutorCallback
from airflow.utils.session import create_session

from dispatcher.backends.kubernetes.pods import SECRET_LIMIT
from tests.support import field_dispatching as on
from tests.support import guarded_callbacks, rows
from tests.support import service_dispatching as run
from tests.support.dispatching import loop, queue_callback
from tests.support.kubernetes_field import KubernetesField

pytestmark = pytest.mark.timeout(400)

CALLBACK = f"{guarded_callbacks.__name__}.measure"
KIB_200 = 200 * 1024


def give(callback_id, size):
    with create_session(scoped=False) as session:
        callback = session.get(ExecutorCallback, callback_id)
        callback.data = {**callback.data, "kwargs": {"text": "x" * size}}


@pytest.mark.needs("redis")
def test_on_celery_it_runs(executor, airflow_home, worker):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    give(callback_id, KIB_200)
    queue_callback(executor, callback_id)
    loop(executor)
    (launch,) = run.launches_of(callback_id)
    run.drive_to_the_end(executor, launch.token)

    assert run.callback_row(callback_id).state == "success"
    assert worker.take_marks() == [str(KIB_200)]


@pytest.fixture
def field(kube_namespace, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")
    field = KubernetesField(kube_namespace, tmp_path)
    yield field
    field.close()


@pytest.mark.needs("kubernetes")
def test_in_pods_it_travels_in_a_secret_and_what_no_secret_holds_is_failed(airflow_db, field):
    executor = on.started_executor(field)
    with create_session(scoped=False) as session:
        large, huge = (rows.make_callback(session).id for _ in range(2))
    give(large, KIB_200)
    give(huge, SECRET_LIMIT)
    for callback_id in (large, huge):
        queue_callback(executor, callback_id)
    task = on.launch_pod(executor)

    token = on.current_token(str(large))
    assert field.kubelet.pods(token), "the large one has its pod"
    names = [one.metadata.name for one in field.api.list_namespaced_secret(field.namespace).items]
    assert len([name for name in names if token in name]) == 1, "and its workload is in a Secret"
    executor.drive(lambda: executor.told, "Airflow is told of the huge one")
    ((key, state, info),) = set(executor.told)
    assert (key.id, state) == (str(huge), "failed")
    assert "bytes; a Secret holds at most 1048576" in info
    assert {one.token for one in executor.dispatcher.in_flight()} == {task, token}
