# SPDX-License-Identifier: Apache-2.0
"""Faults 77 and 79: what a refused creation means for itself and for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dispatcher.backends.base import Postponed, Rejected
from dispatcher.backends.kubernetes.creation import PodCreator
from dispatcher.backends.kubernetes.errors import BusyError, UnreachableError
from dispatcher.backends.kubernetes.pods import BuiltPod
from dispatcher.backends.kubernetes.table import PodTable
from dispatcher.domain.errors import AmbiguousError, RetryableError
from dispatcher.domain.workload import WorkloadKind

if TYPE_CHECKING:
    from dispatcher.backends.base import Outcome
    from dispatcher.domain.errors import BackendError

POD = BuiltPod("token", WorkloadKind.TASK, "default", "pod", {})


class RefusingCluster:
    """Refuses every creation with one error."""

    def __init__(self, error: BackendError) -> None:
        self.error = error

    def create_pod(self, *_: object) -> None:
        raise self.error


def create(error: BackendError, attempts: int = 0, retries: int | None = None) -> tuple[Outcome, list[float]]:
    """Return what became of one creation, and the pauses of all creations that it caused."""
    pauses: list[float] = []
    table = PodTable(lambda namespace: namespace)
    creator = PodCreator(RefusingCluster(error), table, {}, retries=retries, pause=pauses.append)
    return creator.create(POD, attempts), pauses


@pytest.mark.parametrize(("asked", "passed_on"), [(0.0, None), (None, None), (7.0, 7.0)])
def test_fault_77_a_pause_of_nothing_is_no_pause_that_was_asked_for(asked, passed_on):
    result, _ = create(RetryableError("the API server answered 409", retry_after=asked))
    assert (result.retry_after, result.ambiguous, result.tried) == (passed_on, False, True)


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        pytest.param(BusyError("429", retry_after=7.0), [7.0], id="busy"),
        pytest.param(BusyError("429"), [], id="busy-without-a-time"),
        pytest.param(RetryableError("exceeded quota", retry_after=7.0), [], id="quota"),
        pytest.param(AmbiguousError("500", retry_after=7.0), [], id="500"),
    ],
)
def test_fault_79_a_server_that_asks_for_a_pause_gets_it_from_all(error, pauses):
    assert create(error)[1] == pauses


@pytest.mark.parametrize(
    "error",
    [RetryableError("exceeded quota"), BusyError("429"), UnreachableError("away"), AmbiguousError("500")],
)
def test_fault_77_tries_are_bounded_where_the_stock_setting_is_set(error):
    assert isinstance(create(error, attempts=1, retries=2)[0], Postponed)
    given_up = create(error, attempts=2, retries=2)[0]
    assert isinstance(given_up, Rejected)
    assert given_up.reason == f"{error}; not tried again: [kubernetes_executor] task_publish_max_retries = 2"
    assert isinstance(create(error, attempts=1000)[0], Postponed)
