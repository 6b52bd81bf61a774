# SPDX-License-Identifier: Apache-2.0
"""The command of each component of a local stack."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dispatcher.local.environment import QUEUES
from dispatcher.local.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

API_SERVER = "api-server"
BROKER = "broker"
CLUSTER = "cluster"
DAG_PROCESSOR = "dag-processor"
MIGRATION = "database migration"
SCHEDULER = "scheduler"
TOUR = "tour"
TRIGGERER = "triggerer"
WORKER = "celery worker"

SERVED_TO_THE_LAST = frozenset({API_SERVER, BROKER, CLUSTER})
"""Others use them while they end."""


def broker() -> list[str]:
    """Return the command of the embedded broker; it takes a free port and prints it."""
    return _python("dispatcher.local.broker", "--host", HOST, "--port", "0")


def cluster(kubeconfig: Path) -> list[str]:
    """Return the command of the embedded cluster; it takes a free port.

    :param kubeconfig: file in which it says how to reach it
    """
    return _python("dispatcher.local.cluster", "--host", HOST, "--port", "0", "--kubeconfig", str(kubeconfig))


def migration() -> list[str]:
    """Return the command that creates the tables, and ends."""
    return _python("airflow", "db", "migrate")


def api_server(port: int) -> list[str]:
    """Return the command of the API server."""
    return _python("airflow", "api-server", "--host", HOST, "--port", str(port), "--workers", "1")


def scheduler() -> list[str]:
    """Return the command of the scheduler."""
    return _python("airflow", "scheduler", "--skip-serve-logs")


def dag_processor() -> list[str]:
    """Return the command of the DAG processor."""
    return _python("airflow", "dag-processor")


def triggerer() -> list[str]:
    """Return the command of the triggerer."""
    return _python("airflow", "triggerer", "--skip-serve-logs")


def worker() -> list[str]:
    """Return the command of the Celery worker; logs are read as files, so it serves none."""
    return _python(
        "celery", "-A", "workers.celery_app", "worker", "-Q", ",".join(QUEUES), "--skip-serve-logs"
    )


def tour(worker_log: Path, start: float) -> list[str]:
    """Return the command of the tour; it ends by itself.

    :param worker_log: what the Celery worker writes
    :param start: from when its progress lines count, in seconds since the epoch
    """
    return _python("dispatcher.local.tour", "--worker-log", str(worker_log), "--start", str(start))


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]
