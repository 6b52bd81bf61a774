# SPDX-License-Identifier: Apache-2.0
"""A DAG whose tasks last long enough to lose a scheduler or a worker meanwhile; they note what they do."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

JOURNAL = Path("/opt/airflow/logs/breakable.jsonl")
SECONDS = 15


def note(what):
    ti = get_current_context()["ti"]
    with JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(json.dumps([what, ti.task_id, ti.map_index, ti.try_number]) + "\n")


@task(retries=3, retry_delay=timedelta(seconds=1))
def work(number):
    note("began")
    time.sleep(SECONDS)
    note("ended")
    return number


with DAG(dag_id="breakable", schedule=None, catchup=False):
    work.override(task_id="on_celery").expand(number=list(range(12)))
    work.override(task_id="on_kubernetes", queue="kubernetes").expand(number=list(range(3)))
