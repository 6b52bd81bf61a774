# SPDX-License-Identifier: Apache-2.0
"""The look, by name, for pods that no list or watch shows any more."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Artefact
from dispatcher.backends.kubernetes.access import ClusterAccess
from dispatcher.backends.kubernetes.errors import ForbiddenError, UnreachableError
from dispatcher.backends.kubernetes.table import PodTable
from dispatcher.domain.errors import BackendError
from dispatcher.domain.workload import WorkloadKind


class Cluster:
    """Has no pods; in the namespace ``closed`` it answers with an error."""

    def __init__(self, error: BackendError) -> None:
        self._error = error

    def read_pod(self, namespace: str, _name: str) -> None:
        if namespace == "closed":
            raise self._error


@pytest.fixture
def table() -> PodTable:
    """Two confirmed pods that a complete list of all namespaces does not show."""
    made = PodTable(lambda _namespace: None)
    made.take_up(Artefact(one, WorkloadKind.TASK, f"{one}/pod") for one in ("closed", "open"))
    made.listed(None, {}, (), begun=0.0)
    return made


def access(error: BackendError) -> ClusterAccess:
    return ClusterAccess(options=None, cluster=Cluster(error), builder=None, creator=None, remover=None)


def test_a_namespace_where_one_may_not_look_holds_up_no_other(table):
    access(ForbiddenError("no")).sweep(table)
    assert [one.token for one in table.endings()] == ["open"]
    assert [one.token for one in table.missing()] == ["closed"]


def test_nothing_is_concluded_while_the_api_server_does_not_answer(table):
    with pytest.raises(UnreachableError):
        access(UnreachableError("away")).sweep(table)
    assert table.endings() == []
