# SPDX-License-Identifier: Apache-2.0
"""What plain ``celery -A workers.celery_app worker`` does beside running workloads."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3

import pytest

from tests.support import processes
from tests.support.celery_worker import PLAIN, CeleryWorker, embedded_broker, wait_until
from tests.support.fence_server import FenceServer
from tests.support.workloads import make_task_workload

STOP_SECONDS = 30


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def worker_with_helpers(guarded_dag_file, tmp_path):
    """Yield a worker with a log server, JSON logs, autoscale and a database as result back end."""
    port = processes.free_port()
    env = {
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{tmp_path / 'results.db'}",
        "AIRFLOW__CELERY__WORKER_AUTOSCALE": "2,1",
        "AIRFLOW__LOGGING__JSON_LOGS": "True",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(port),
    }
    with FenceServer() as fence, embedded_broker() as broker:
        worker = CeleryWorker(PLAIN, broker, fence.url, tmp_path, env)
        with worker:
            wait_until(lambda: listens(port), STOP_SECONDS)
            yield worker, port


@pytest.mark.slow
def test_a_worker_does_what_the_stock_command_does(worker_with_helpers, tmp_path):
    worker, port = worker_with_helpers
    (stats,) = worker.app.control.inspect(timeout=10).stats().values()
    assert (stats["autoscaler"]["max"], stats["autoscaler"]["min"]) == (2, 1)
    with sqlite3.connect(tmp_path / "results.db") as results:
        tables = {name for (name,) in results.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    results.close()
    assert {"celery_taskmeta", "celery_tasksetmeta"} <= tables
    worker.send(make_task_workload("succeed"))
    worker.wait_for(lambda: worker.take_marks() == ["succeed"])
    running = [line for line in worker.log().splitlines() if "Running ExecuteTask" in line]
    assert json.loads(running[0])["level"] == "info"

    os.kill(worker.process.pid, signal.SIGTERM)
    worker.process.popen.wait(STOP_SECONDS)

    assert not listens(port)


@pytest.mark.slow
def test_the_helpers_of_a_killed_worker_end(worker_with_helpers):
    worker, port = worker_with_helpers

    os.kill(worker.process.pid, signal.SIGKILL)

    wait_until(lambda: not listens(port), STOP_SECONDS)
