# SPDX-License-Identifier: Apache-2.0
"""A sensor that takes two launches: it defers, and is launched again when its trigger fires."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseSensorOperator, Context

from dispatcher.example_dags.journal import note, wait_for_gate


class StandbySensor(BaseSensorOperator):
    """Wait in the triggerer, then, if the example's gate exists, until that opens.

    :param wait: how long to wait in the triggerer
    :param kwargs: what every sensor takes
    """

    def __init__(self, *, wait: timedelta, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait = wait

    def execute(self, context: Context) -> NoReturn:
        """Free the worker until the time is over."""
        note(self.task_id, try_number=context["ti"].try_number)
        self.defer(trigger=TimeDeltaTrigger(self.wait), method_name="resume")

    def resume(self, context: Context, event: Any = None) -> None:  # noqa: ARG002 - given by Airflow
        """Go on in the second launch."""
        note(f"{self.task_id} resumed", try_number=context["ti"].try_number)
        wait_for_gate()
