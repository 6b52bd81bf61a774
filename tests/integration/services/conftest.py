# SPDX-License-Identifier: Apache-2.0
"""A broker, API servers and workers that the tests of this package share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import services
from tests.support.celery_worker import PLAIN, CeleryWorker
from tests.support.real_pods import Pods
from tests.support.service_dispatching import started_executor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.api_server import ApiServers
    from tests.support.service_dispatching import ServiceExecutor


@pytest.fixture(scope="package")
def broker() -> Iterator[str]:
    """Yield the URL of a Redis database, the broker and the result back end of this package."""
    with services.claimed_redis_database() as url:
        yield url


@pytest.fixture(scope="package")
def server(api_server: ApiServers) -> str:
    """Return the URL of the execution API of a server with the plugin."""
    return api_server(with_plugin=True).url + "/execution/"


@pytest.fixture(scope="package")
def _worker(broker: str, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CeleryWorker]:
    command = [*PLAIN, "--skip-serve-logs"]
    env = {"AIRFLOW__CELERY__WORKER_CONCURRENCY": "2"}
    with CeleryWorker(command, broker, server, tmp_path_factory.mktemp("worker"), env) as worker:
        yield worker


@pytest.fixture
def worker(_worker: CeleryWorker) -> CeleryWorker:
    """Return a worker of our own app, at a server with the plugin; nothing has left a mark yet."""
    _worker.take_marks()
    return _worker


@pytest.fixture
def configured(broker: str, server: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Tell executors that are started from now on where broker and API server are; the test may add to it."""
    monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", broker)
    monkeypatch.setenv("AIRFLOW__CELERY__RESULT_BACKEND", broker)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", server)
    return monkeypatch


@pytest.fixture
def executor(configured: pytest.MonkeyPatch) -> Iterator[ServiceExecutor]:
    """Yield a started executor."""
    with started_executor() as started:
        yield started


@pytest.fixture
def pods(kube_namespace: str, server: str, tmp_path: Path, configured: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Yield a namespace whose pods run; executors that are started from now on make theirs there."""
    with services.kubernetes_client() as client:
        pods = Pods(client, kube_namespace, tmp_path, server)
        for name, value in pods.executor_environment().items():
            configured.setenv(name, value)
        yield pods
