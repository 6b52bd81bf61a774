# SPDX-License-Identifier: Apache-2.0
"""A DAG for tests of workers; its tasks note that their body ran in the file that GUARD_MARKS names.

GUARD_EXECUTOR is the executor that the tasks ask for; where it is not set, they ask for none.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow.sdk import DAG, task

with DAG("guarded", schedule=None, default_args={"executor": os.environ.get("GUARD_EXECUTOR")}):

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
