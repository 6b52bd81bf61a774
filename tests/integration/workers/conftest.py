# SPDX-License-Identifier: Apache-2.0
"""A worker process and a server that plays the fence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import fence_server
from tests.support.fence_server import FenceServer
from tests.support.guard_host import GuardHost

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def guarded_dag_file(airflow_home: Path) -> Path:
    """Put the DAG of the tests into the DAGs folder and return its path."""
    source = Path(fence_server.__file__).with_name("guarded_dag.py")
    return Path(shutil.copy(source, airflow_home / "dags" / source.name))


@pytest.fixture(scope="package")
def _guard_host(guarded_dag_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardHost]:
    with GuardHost(tmp_path_factory.mktemp("guard")) as host:
        yield host


@pytest.fixture
def guard(_guard_host: GuardHost) -> GuardHost:
    """Return a worker process whose log and marks are empty."""
    _guard_host.take_marks()
    _guard_host.take_log()
    return _guard_host


@pytest.fixture
def fence() -> Iterator[FenceServer]:
    """Yield a server that plays the fence."""
    with FenceServer() as server:
        yield server
