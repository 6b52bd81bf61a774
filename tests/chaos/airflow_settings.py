# SPDX-License-Identifier: Apache-2.0
"""The settings of the Airflow of a run: so short that it recovers from a death within a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.bodies import NOTES_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKOUT = Path(__file__).parents[2]

STALL_SECONDS = 20
"""How long a stalled scheduler stalls: longer than the others take it to be alive."""

WORKER_SLOTS = 2
"""How many workloads one Celery worker runs at once."""

SETTINGS: Mapping[str, str] = {
    "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "tests" / "chaos" / "dags"),
    "AIRFLOW__CORE__PARALLELISM": "32",
    "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(WORKER_SLOTS),
    "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "20",
    "AIRFLOW__KUBERNETES_EXECUTOR__DELETE_WORKER_PODS_ON_FAILURE": "True",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "90",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__NUM_STUCK_IN_QUEUED_RETRIES": "20",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "3",
}


def settings_of_run(notes: Path) -> dict[str, str]:
    """Return the variables that every component and every pod has beside those of a local Airflow.

    :param notes: the file that all bodies append to
    """
    # What runs is this checkout, also in pods, wherever the distribution was installed from.
    return {**SETTINGS, NOTES_VARIABLE: str(notes), "PYTHONPATH": str(CHECKOUT)}
