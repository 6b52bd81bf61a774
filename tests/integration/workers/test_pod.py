# SPDX-License-Identifier: Apache-2.0
"""The pod's entry point as a process: its exit codes, and the log it writes to stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import jwt
import pytest
from airflow.configuration import conf

from dispatcher.backends.kubernetes.identity import Owner
from dispatcher.backends.kubernetes.options import load_options
from dispatcher.backends.kubernetes.pods import PodBuilder
from dispatcher.domain.wire import EXIT_EXPIRED
from dispatcher.settings import WorkloadDelivery
from tests.support import guarded_callbacks
from tests.support.backend_harness import make_submission
from tests.support.fence_server import Answer, FenceServer, refusal
from tests.support.guard_host import SETTINGS
from tests.support.workloads import make_callback_workload, make_task_workload

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run_pod(tmp_path, fence, guarded_dag_file):
    """Return a function that runs a workload as a pod does and returns the finished process."""

    def run(workload, **env):
        file = tmp_path / "workload.json"
        file.write_text(workload.model_dump_json())
        return subprocess.run(
            [sys.executable, "-m", "workers.pod", "--json-path", str(file)],
            env={
                **os.environ,
                **SETTINGS,
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": fence.url,
                "GUARD_MARKS": str(tmp_path / "marks"),
                **env,
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def pod_container(submission):
    """Return the container ``base`` of the pod of an artefact, as the settings of this process make it."""
    builder = PodBuilder(load_options(conf), Owner("1", "tests"), WorkloadDelivery.SECRET)
    return builder.build(submission).body["spec"]["containers"][0]


def events(finished):
    """Return the pod's log; every line of it is JSON."""
    return [json.loads(line) for line in finished.stdout.splitlines()]


def test_a_task_runs_and_a_second_pod_is_refused_with_exit_code_0(run_pod, fence, tmp_path):
    """K5: two pods of one launch exist; the second loses ``/run``."""
    token = str(uuid.uuid4())
    workload = make_task_workload("succeed", token)

    first, second = run_pod(workload), run_pod(workload)

    assert (first.returncode, second.returncode) == (0, 0), first.stdout + second.stdout
    assert (tmp_path / "marks").read_text().splitlines() == ["succeed"]
    claimants = {request.headers["airflow-launch-claimant"] for request in fence.calls("run")}
    assert len(claimants) == 2
    (line,) = [event for event in events(second) if "refused" in event["event"]]
    assert line["level"] == "warning"
    for word in (token, str(workload.ti.id), "launch_consumed"):
        assert word in line["event"]
    for finished in (first, second):
        assert workload.token not in finished.stdout + finished.stderr


def test_fault_4_a_task_that_names_the_executor_by_its_alias_is_found_in_its_pod(
    run_pod, tmp_path, monkeypatch
):
    executors = "CeleryExecutor,hybrid:dispatcher.executor.HybridExecutor"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executors)
    container = pod_container(make_submission())
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    assert variables["AIRFLOW__CORE__EXECUTOR"] == executors

    finished = run_pod(make_task_workload("succeed", str(uuid.uuid4())), **variables, GUARD_EXECUTOR="hybrid")

    assert finished.returncode == 0, finished.stdout
    assert (tmp_path / "marks").read_text() == "succeed\n", finished.stdout


def test_a_claim_that_is_an_error_has_exit_code_1(run_pod, fence):
    fence.fix("run", refusal("launch_token_invalid", 400))

    finished = run_pod(make_task_workload("succeed", str(uuid.uuid4())))

    assert finished.returncode == 1
    assert any(event["level"] == "error" and "failed" in event["event"] for event in events(finished))


@pytest.mark.parametrize("kind", ["task", "callback"])
def test_fault_108_a_token_that_ran_out_has_an_exit_code_of_its_own(run_pod, fence, tmp_path, kind):
    token = str(uuid.uuid4())
    if kind == "task":
        workload, call = make_task_workload("succeed", token), "run"
    else:
        path = f"{guarded_callbacks.__name__}.succeed"
        workload, call = make_callback_workload(path, token), "callback-run"
    claims = {**jwt.decode(workload.token, options={"verify_signature": False}), "exp": 1}
    workload.token = jwt.encode(claims, "k" * 64, algorithm="HS512")
    fence.fix(call, Answer(403, {"detail": "Invalid auth token: Signature has expired"}))

    finished = run_pod(workload)

    assert finished.returncode == EXIT_EXPIRED, finished.stdout
    (line,) = [
        event for event in events(finished) if "longer than its workload token is valid" in event["event"]
    ]
    assert line["level"] == "warning"
    assert token in line["event"]
    assert not any(event["level"] == "error" for event in events(finished))
    assert not (tmp_path / "marks").exists()


def test_another_403_has_exit_code_1(run_pod, fence):
    fence.fix("run", Answer(403, {"detail": "Invalid auth token"}))

    finished = run_pod(make_task_workload("succeed", str(uuid.uuid4())))

    assert finished.returncode == 1


def test_a_callback_that_failed_and_was_reported_has_exit_code_0(run_pod, fence):
    finished = run_pod(make_callback_workload(f"{guarded_callbacks.__name__}.fail", str(uuid.uuid4())))

    assert finished.returncode == 0, finished.stdout
    assert "the pager is unreachable" in fence.calls("callback-state")[0].body["output"]


def test_a_pod_loads_no_scheduler_side_library(run_pod):
    """What the entry point imports is the pod's start-up time."""
    code = (
        "import sys, workers.pod, workers.guard, workers.payload\n"
        "import airflow.sdk.execution_time.supervisor\n"
        "print([name for name in ('celery', 'kubernetes', 'kombu', 'redis', 'dispatcher.settings',"
        " 'workers.callback_guard') if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert finished.stdout.splitlines()[-1] == "[]"


def test_a_pod_against_no_server_has_exit_code_1(run_pod):
    with FenceServer() as gone:
        url = gone.url

    finished = run_pod(
        make_task_workload("succeed", str(uuid.uuid4())), AIRFLOW__CORE__EXECUTION_API_SERVER_URL=url
    )

    assert finished.returncode == 1
