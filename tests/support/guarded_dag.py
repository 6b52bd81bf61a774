# SPDX-License-Identifier: Apache-2.0
"""A DAG for tests of workers; its tasks note that their body ran in the file that GUARD_MARKS names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow.sdk import DAG, task

with DAG("guarded", schedule=None):

    def mark(word: str) -> None:
        with Path(os.environ["GUARD_MARKS"]).open("a") as file:
            file.write(f"{word}\n")

    @task
    def succeed():
        mark("succeed")

    @task
    def fail():
        mark("fail")
        raise ValueError("the body failed")

    @task
    def sleep():
        mark("sleep")
        time.sleep(90)
        mark("slept")

    succeed()
    fail()
    sleep()
