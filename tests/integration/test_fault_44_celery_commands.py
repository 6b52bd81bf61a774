# SPDX-License-Identifier: Apache-2.0
"""Known fault 44: the `celery` commands are there in every form in which our executor may be named, once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.environment import EXECUTOR

SCRIPT = """
import os, sys
from collections import Counter
from airflow.configuration import conf
for executor in sys.argv[1:]:
    os.environ["AIRFLOW__CORE__EXECUTOR"] = executor
    sys.modules.pop("airflow.cli.cli_parser", None)
    sys.modules.pop("airflow.cli.cli_config", None)
    from airflow.cli import cli_parser
    counts = Counter(command.name for command in cli_parser.airflow_commands)
    parser = cli_parser.get_parser()
    for command in ("worker", "stop", "list-workers"):
        parser.parse_args(["celery", command])
    print(executor, counts["celery"], counts["kubernetes"], counts["dispatcher"])
"""

FORMS = [
    EXECUTOR,
    f"hybrid:{EXECUTOR}",
    f"LocalExecutor,{EXECUTOR}",
    f"{EXECUTOR},CeleryExecutor,KubernetesExecutor",
    f"{EXECUTOR};red={EXECUTOR}",
    f"LocalExecutor;red=hybrid:{EXECUTOR}",
]


@pytest.mark.timeout(200)
def test_fault_44_the_group_is_there_once_whatever_the_form():
    env = {**os.environ, "AIRFLOW__CORE__MULTI_TEAM": "True"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *FORMS],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line for line in done.stdout.splitlines() if EXECUTOR in line]
    assert told == [f"{form} 1 1 1" for form in FORMS], done.stderr[-2000:]
