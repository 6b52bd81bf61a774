# SPDX-License-Identifier: Apache-2.0
"""A DAG whose tasks note that they began, wait for a gate, and note that they ended."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

JOURNAL = Path("/opt/airflow/logs/breakable.jsonl")
GATE = Path("/opt/airflow/logs/breakable-gate")
GATE_SECONDS = 900
ON_CELERY = 10
IN_PODS = 2


def note(what):
    ti = get_current_context()["ti"]
    with JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(json.dumps([what, ti.task_id, ti.map_index, ti.try_number]) + "\n")


@task(retries=3, retry_delay=timedelta(seconds=1))
def work(number):
    note("began")
    deadline = time.monotonic() + GATE_SECONDS
    while not GATE.exists():
        assert time.monotonic() < deadline, "the gate did not open"
        time.sleep(0.5)
    note("ended")
    return number


with DAG(dag_id="breakable", schedule=None, catchup=False):
    work.override(task_id="on_celery").expand(number=list(range(ON_CELERY)))
    work.override(task_id="in_pods", queue="kubernetes").expand(number=list(range(IN_PODS)))
