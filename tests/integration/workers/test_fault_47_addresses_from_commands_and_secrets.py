# SPDX-License-Identifier: Apache-2.0
"""Known fault 47: broker and result back end given by command or secret alone, for worker and scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

BROKER = "redis://:marked@by-command.example:6379/0"
RESULTS = "redis://:marked@by-secret.example:6379/0"

SCRIPT = """
from workers.celery_app import app
print("worker", app.conf.broker_url.strip(), app.conf.result_backend)
from airflow.executors.base_executor import ExecutorConf
from dispatcher.backends.celery.app import create_app
sender, open_results = create_app(ExecutorConf(), 5.0)
results = open_results().connparams
print("executor", sender.connection_for_write().hostname, results["host"], results["password"])
"""


@pytest.mark.timeout(200)
def test_fault_47_worker_and_executor_use_what_was_resolved(tmp_path):
    secrets = tmp_path / "variables.json"
    secrets.write_text(json.dumps({"results": RESULTS}))
    env = {
        **os.environ,
        "AIRFLOW__SECRETS__BACKEND": "tests.support.secret_file.SecretFile",
        "AIRFLOW__CELERY__BROKER_URL_CMD": f"echo {BROKER}",
        "AIRFLOW__CELERY__RESULT_BACKEND_SECRET": "results",
        "SECRET_FILE": str(secrets),
    }
    for name in ("AIRFLOW__CELERY__BROKER_URL", "AIRFLOW__CELERY__RESULT_BACKEND"):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line for line in done.stdout.splitlines() if line.startswith(("worker", "executor"))]
    assert told == [f"worker {BROKER} {RESULTS}", "executor by-command.example by-secret.example marked"]
    assert "marked" not in done.stderr
