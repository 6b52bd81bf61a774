# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the contract suites."""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.clusters import BOTH, Cluster, connected, embedded_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    """Yield what opens a cluster by its kind, once per session."""
    opened: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def open_cluster(kind: str) -> Cluster:
            if kind not in opened:
                kubeconfig = Path(os.environ.get("KUBECONFIG", ""))
                if kind == "embedded":
                    directory = tmp_path_factory.mktemp("cluster")
                    kubeconfig, _process = stack.enter_context(
                        embedded_cluster(directory, "--bookmark-seconds", "0.5")
                    )
                opened[kind] = stack.enter_context(connected(kubeconfig, embedded=kind == "embedded"))
            return opened[kind]

        yield open_cluster


@pytest.fixture(params=BOTH)
def cluster(request: pytest.FixtureRequest, clusters: Callable[[str], Cluster]) -> Cluster:
    return clusters(request.param)


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses, also good as a label value."""
    return f"t-{uuid.uuid4().hex[:12]}"
