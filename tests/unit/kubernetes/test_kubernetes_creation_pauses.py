# SPDX-License-Identifier: Apache-2.0
"""Fault 77: a refused creation is not tried in a tight loop, even where the server asks for no pause."""

from __future__ import annotations

import pytest

from dispatcher.backends.kubernetes.creation import PodCreator
from dispatcher.backends.kubernetes.pods import BuiltPod
from dispatcher.backends.kubernetes.table import PodTable
from dispatcher.domain.errors import RetryableError


class RefusingCluster:
    """Refuses every creation with one ``Retry-After``."""

    def __init__(self, retry_after: float | None) -> None:
        self.retry_after = retry_after

    def create_pod(self, *_: object) -> None:
        raise RetryableError("the API server answered 429", retry_after=self.retry_after)


@pytest.mark.parametrize(("asked", "passed_on"), [(0.0, None), (None, None), (7.0, 7.0)])
def test_a_pause_of_nothing_is_no_pause_that_was_asked_for(asked, passed_on):
    creator = PodCreator(RefusingCluster(asked), PodTable(lambda namespace: namespace), {})

    result = creator.create(BuiltPod("token", "default", "pod", {}))

    assert (result.retry_after, result.ambiguous) == (passed_on, False)
