# SPDX-License-Identifier: Apache-2.0
"""A DAG for tests of workers, with a task that defers; see ``guarded_dag.py`` for the marks."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import DAG, BaseOperator


def mark(word: str) -> None:
    """Note that a body ran."""
    with Path(os.environ["GUARD_MARKS"]).open("a") as file:
        file.write(f"{word}\n")


class Deferring(BaseOperator):
    """Defers in its first launch and ends in its second."""

    def execute(self, context: Any) -> None:  # noqa: ARG002
        """Defer."""
        mark("deferred")
        self.defer(trigger=DateTimeTrigger(moment=datetime(2100, 1, 1, tzinfo=UTC)), method_name="resume")

    def resume(self, context: Any, event: Any = None) -> None:  # noqa: ARG002
        """End."""
        mark("resumed")


with DAG("deferring", schedule=None):
    Deferring(task_id="defer")
