# SPDX-License-Identifier: Apache-2.0
"""Real Celery workers, under both worker commands, with the guard in place (rules 7 and 12)."""

from __future__ import annotations

import contextlib
import json
import uuid

import pytest

from tests.support import guarded_callbacks, services
from tests.support.celery_worker import AIRFLOW, PLAIN, CeleryWorker, embedded_broker
from tests.support.fence_server import FenceServer, refusal
from tests.support.workloads import make_callback_workload, make_task_workload

WITH_GUARD = {"AIRFLOW__CELERY__EXTRA_CELERY_CONFIG": json.dumps({"imports": ["workers.celery_guard"]})}
EVERYWHERE = pytest.mark.parametrize(
    "worker",
    [
        "plain",
        pytest.param("redis", marks=pytest.mark.needs("redis")),
        pytest.param("airflow", marks=pytest.mark.slow),
    ],
    indirect=True,
)
"""``celery -A`` on the embedded broker and on Redis, and ``airflow celery worker``."""

PLAIN_ONLY = pytest.mark.parametrize("worker", ["plain"], indirect=True)


@pytest.fixture(scope="module")
def module_fence():
    with FenceServer() as server:
        yield server


@pytest.fixture(scope="module")
def worker(request, module_fence, guarded_dag_file, tmp_path_factory):
    command, env = (AIRFLOW, WITH_GUARD) if request.param == "airflow" else (PLAIN, {})
    with contextlib.ExitStack() as stack:
        if request.param == "redis":
            broker = stack.enter_context(services.claimed_redis_database())
        else:
            broker = stack.enter_context(embedded_broker())
        folder = tmp_path_factory.mktemp("worker")
        worker = CeleryWorker([*command, "--skip-serve-logs"], broker, module_fence.url, folder, env)
        yield stack.enter_context(worker)


@pytest.fixture
def fence(module_fence):
    module_fence.requests.clear()
    return module_fence


def new_token():
    return str(uuid.uuid4())


@EVERYWHERE
def test_a_launch_of_ours_is_run(worker, fence):
    token = new_token()
    worker.send(make_task_workload("succeed", token), token)
    worker.wait_for(lambda: worker.state(token) == "SUCCESS")

    assert worker.take_marks() == ["succeed"]
    assert fence.calls("run")[0].headers["airflow-launch-token"] == token


@EVERYWHERE
def test_a_refused_message_is_acknowledged_and_stores_no_failure(worker, fence):
    token = new_token()
    fence.supersede(token)
    worker.send(make_task_workload("succeed", token), token)
    worker.wait_for(lambda: len(fence.calls("run")) == 1)
    worker.wait_idle()

    assert worker.state(token) == "PENDING"
    assert worker.take_marks() == []
    (line,) = [line for line in worker.log().splitlines() if token in line and "refused" in line]
    assert "launch_superseded" in line


@PLAIN_ONLY
def test_a_message_that_is_delivered_again_changes_nothing(worker, fence):
    """C2: delivered again after success; the second delivery is another claimant."""
    token = new_token()
    workload = make_task_workload("succeed", token)
    worker.send(workload, token)
    worker.wait_for(lambda: worker.state(token) == "SUCCESS")

    worker.send(workload, token)
    worker.wait_for(lambda: len(fence.calls("run")) == 2)
    worker.wait_idle()

    assert worker.state(token) == "SUCCESS"
    assert worker.take_marks() == ["succeed"]


@PLAIN_ONLY
def test_started_is_never_stored(worker, fence):
    token = new_token()
    worker.send(make_task_workload("sleep", token), token)
    worker.wait_for(lambda: len(fence.calls("heartbeat")) > 0)

    assert worker.state(token) == "PENDING"

    fence.supersede(token)
    worker.wait_for(lambda: worker.state(token) == "SUCCESS")
    assert "slept" not in worker.take_marks()


@PLAIN_ONLY
def test_an_error_of_the_claim_is_stored_as_failure(worker, fence):
    token = new_token()
    fence.fix("run", refusal("launch_token_invalid", 400))
    worker.send(make_task_workload("succeed", token), token)
    worker.wait_for(lambda: worker.state(token) == "FAILURE")

    assert worker.take_marks() == []


@PLAIN_ONLY
def test_a_payload_that_is_no_workload_is_stored_as_failure_without_its_content(worker):
    secret = "eyJ.secret.token"
    message_id = worker.send_payload(json.dumps({"token": secret}))
    worker.wait_for(lambda: worker.state(message_id) == "FAILURE")

    stored = worker.stored(message_id)
    assert secret not in str(stored["result"])
    assert secret not in str(stored["traceback"])


@EVERYWHERE
def test_a_message_of_the_stock_executor_is_run_as_stock(worker, fence):
    """B4: our worker with a message of the stock executor."""
    message_id = worker.send(make_task_workload("succeed"))
    worker.wait_for(lambda: worker.state(message_id) == "SUCCESS")

    assert worker.take_marks() == ["succeed"]
    assert not any("airflow-launch-token" in request.headers for request in fence.requests)


@PLAIN_ONLY
def test_a_callback_is_run_from_its_queue(worker, fence):
    token = new_token()
    workload = make_callback_workload(f"{guarded_callbacks.__name__}.succeed", token)
    worker.send(workload, token, queue="callbacks")
    worker.wait_for(lambda: worker.state(token) == "SUCCESS")

    assert worker.take_marks() == ["callback"]
    assert fence.calls("callback-state")[0].body["state"] == "success"


@PLAIN_ONLY
def test_fault_53_no_token_is_in_the_log(worker, fence):
    token = new_token()
    workload = make_task_workload("succeed", token)
    worker.send(workload, token)
    worker.wait_for(lambda: worker.state(token) == "SUCCESS")

    assert workload.token not in worker.log()
