# SPDX-License-Identifier: Apache-2.0
"""Real Celery workers, under both worker commands, with the guard in place (rules 7 and 12)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid

import jwt
import pytest

from tests.support import guarded_callbacks, services
from tests.support.celery_worker import AIRFLOW, PLAIN, CeleryWorker, embedded_broker
from tests.support.fence_server import Answer, FenceServer, refusal
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


def stored_error(worker, token):
    """Return an error as it is stored; Celery makes an exception of it where it can."""
    key = worker.app.backend.get_key_for_task(token)
    return json.loads(worker.app.backend.get(key))["result"]


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
    (run,) = fence.calls("run")
    assert stored_error(worker, token)["exc_message"][1] == run.headers["airflow-launch-claimant"]


@PLAIN_ONLY
def test_fault_108_a_token_that_ran_out_is_stored_as_such(worker, fence):
    token = new_token()
    workload = make_task_workload("succeed", token)
    workload.token = jwt.encode({"launch_token": token, "exp": 1}, "k" * 64, algorithm="HS512")
    fence.fix("run", Answer(403, {"detail": "Invalid auth token: Signature has expired"}))
    worker.send(workload, token)
    worker.wait_for(lambda: worker.state(token) == "FAILURE")

    assert stored_error(worker, token)["exc_type"] == "ExpiredWorkloadError"


@PLAIN_ONLY
def test_what_goes_wrong_is_stored_with_the_claimant(worker, fence):
    token = new_token()
    fence.fix("callback-state", Answer(422, {"detail": "no"}))
    workload = make_callback_workload(f"{guarded_callbacks.__name__}.succeed", token)
    worker.send(workload, token)
    worker.wait_for(lambda: worker.state(token) == "FAILURE")

    error = stored_error(worker, token)
    assert error["exc_type"] == "ExecutionFailedError"
    assert error["exc_message"][0].startswith("ReportNotDeliveredError: ")
    assert error["exc_message"][1] == fence.claims[token]
    worker.take_marks()


@PLAIN_ONLY
def test_a_process_that_is_killed_is_stored_with_its_name(worker, fence):
    """By it the executor knows whether that was the claimant or another delivery."""
    token = new_token()
    worker.send(make_task_workload("sleep", token), token)
    worker.wait_for(lambda: len(fence.calls("heartbeat")) > 0)

    (process,) = worker.busy_processes()
    os.kill(process.pid, signal.SIGKILL)
    worker.wait_for(lambda: worker.state(token) == "FAILURE")

    error = stored_error(worker, token)
    assert error["exc_type"] == "ProcessLostError"
    assert "SIGKILL" in error["exc_message"][0]
    assert f".{process.pid}/" in error["exc_message"][1]
    assert fence.claims[token].startswith(error["exc_message"][1])
    worker.take_marks()


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
