# SPDX-License-Identifier: Apache-2.0
"""Known fault 51: addresses with passwords in what a worker writes, at its most talkative."""

from __future__ import annotations

import uuid

import pytest

from tests.support.celery_worker import PLAIN, CeleryWorker
from tests.support.fence_server import FenceServer
from tests.support.redis_server import RedisServer
from tests.support.workloads import make_task_workload

PASSWORD = "marked-password"


@pytest.mark.needs("redis")
@pytest.mark.slow
def test_fault_51_no_password_is_in_the_log_of_a_worker(guarded_dag_file, tmp_path):
    """Banner, a task, inspection, and a broker that goes away; at debug level."""
    with RedisServer(tmp_path, password=PASSWORD) as server, FenceServer() as fence:
        folder = tmp_path / "worker"
        folder.mkdir()
        command = [*PLAIN, "--skip-serve-logs", "--loglevel", "debug"]
        with CeleryWorker(command, server.url, fence.url, folder) as worker:
            token = str(uuid.uuid4())
            workload = make_task_workload("succeed", token)
            worker.send(workload, token)
            worker.wait_for(lambda: worker.state(token) == "SUCCESS")
            inspection = worker.app.control.inspect(timeout=2)
            answers = [inspection.stats(), inspection.report(), inspection.conf()]
            server.stop()
            worker.wait_for(lambda: "Cannot connect to" in worker.log())
            log = worker.log()

    assert "-------- celery@" in log, "the banner is shown"
    assert PASSWORD not in log
    assert workload.token not in log, "known fault 53 at debug level"
    assert all(answers)
    assert PASSWORD not in str(answers)
