# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests. Airflow's environment is set here, before anything imports Airflow."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import environment

AIRFLOW = environment.prepare()

from tests.support import database, services  # noqa: E402
from tests.support.api_server import ApiServers  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy.orm import Session
    from starlette.testclient import TestClient


# Every run tries the same examples, and none fails because the machine is busy. To search at random:
# pytest --hypothesis-profile search
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("search", **_PATIENT)
settings.register_profile("repeatable", derandomize=True, **_PATIENT)
settings.load_profile("repeatable")

_SLOWEST_FIRST = (
    "tests/e2e",
    "tests/integration/services",
    "tests/contract",
    "tests/integration/workers",
    "tests/integration",
)
"""Folders whose tests take longest: begun first, so that no process is left alone with them at the end."""


@pytest.hookimpl(tryfirst=True)  # before ``-m`` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of slow folders first, and mark those that no service changes as ``alone``.

    Within a folder those that are slow come first, else the order stays.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("needs") is None and "airflow_db" not in fixtures:
            item.add_marker("alone")

    def rank(item: pytest.Item) -> tuple[int, bool]:
        folder = item.path.parent.relative_to(item.config.rootpath).as_posix()
        place = next(
            (n for n, slow in enumerate(_SLOWEST_FIRST) if folder.startswith(slow)), len(_SLOWEST_FIRST)
        )
        return place, item.get_closest_marker("slow") is None

    items.sort(key=rank)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail, tests whose services are missing."""
    services.enforce(item)


def pytest_unconfigure() -> None:
    """Remove Airflow's home at the very end, when nothing writes there any more."""
    AIRFLOW.remove()


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """Return Airflow's home of this test process."""
    return AIRFLOW.home


@pytest.fixture(scope="session")
def airflow_database() -> str:
    """Return the kind of metadata database: ``sqlite`` or ``postgres``."""
    return AIRFLOW.database


@pytest.fixture(scope="session")
def airflow_db() -> Iterator[None]:
    """Migrate the metadata database as ``airflow db migrate`` does; rows are removed after each test."""
    AIRFLOW.create_database()
    try:
        database.migrate()
        yield
    finally:
        database.dispose()
        AIRFLOW.drop_database()


@pytest.fixture(autouse=True)
def _rows_removed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "airflow_db" in request.fixturenames:
        database.empty()


@pytest.fixture
def db_session(airflow_db: None) -> Iterator[Session]:
    """Yield a session on the metadata database; what the test does not commit is rolled back."""
    from airflow import settings

    session = settings.NonScopedSession()
    try:
        yield session
    finally:
        session.rollback()
        session.close()


@pytest.fixture(scope="session")
def api_server(airflow_db: None) -> Iterator[ApiServers]:
    """Yield a function that returns a running API server: see ``ApiServers.__call__``."""
    servers = ApiServers(AIRFLOW.home)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def execution_client(airflow_db: None) -> Iterator[TestClient]:
    """Yield a client of the whole API app in this process, plugins loaded; fast, and without a network."""
    from airflow.api_fastapi.app import create_app
    from starlette.testclient import TestClient

    with TestClient(create_app(), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def own_client(execution_client: TestClient) -> Iterator[Callable[[Any], TestClient]]:
    """Yield a function that returns a client of an app, with an event loop of its own, once in a test."""
    from starlette.testclient import TestClient

    with ExitStack() as clients:

        def make(app: Any) -> TestClient:
            database.close_connections_of_loop(execution_client)
            client = clients.enter_context(TestClient(app, raise_server_exceptions=False))
            clients.callback(database.close_connections_of_loop, client)
            return client

        yield make


@pytest.fixture(scope="session")
def _redis_database() -> Iterator[str]:
    with services.claimed_redis_database() as url:
        yield url


@pytest.fixture
def redis_url(_redis_database: str) -> Iterator[str]:
    """Yield the URL of an empty Redis database that nobody else uses; mark the test ``needs("redis")``."""
    services.flush_redis_database(_redis_database)
    yield _redis_database
    services.flush_redis_database(_redis_database)


@pytest.fixture
def kube_namespace() -> Iterator[str]:
    """Yield the name of a namespace of the test's own; mark the test ``needs("kubernetes")``."""
    with services.own_namespace() as name:
        yield name
