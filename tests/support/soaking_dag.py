# SPDX-License-Identifier: Apache-2.0
"""A DAG for the soak: its tasks note when they began and ended, in the file that GUARD_MARKS names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

LONG_SECONDS, SHORT_SECONDS = 30, 1
"""Longer and shorter than the visibility time-out of the soak."""

with DAG("soaking", schedule=None):

    def work(seconds: float) -> None:
        instance = get_current_context()["ti"]
        mark(f"began {instance.id} {instance.try_number}")
        time.sleep(seconds)
        mark(f"ended {instance.id} {instance.try_number}")

    def mark(words: str) -> None:
        with Path(os.environ["GUARD_MARKS"]).open("a") as file:
            file.write(f"{words}\n")

    @task
    def long():
        work(LONG_SECONDS)

    @task
    def short():
        work(SHORT_SECONDS)

    long()
    short()
