# SPDX-License-Identifier: Apache-2.0
"""What integration tests without workers share."""

from __future__ import annotations

import pytest


@pytest.fixture
def redis_executors(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let executors that are started from now on use a Redis database of the test's own."""
    monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", redis_url)
    monkeypatch.setenv("AIRFLOW__CELERY__RESULT_BACKEND", redis_url)


@pytest.fixture
def several_schedulers(airflow_db: None, airflow_database: str) -> None:
    """Skip where the metadata database does not carry several schedulers of Airflow at once."""
    if airflow_database != "postgres":
        pytest.skip("several schedulers need PostgreSQL as the metadata database")
