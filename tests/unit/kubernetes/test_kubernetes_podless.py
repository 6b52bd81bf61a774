# SPDX-License-Identifier: Apache-2.0
"""Claimed launches of which no pod is known: they are given up once all that is watched shows none."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Artefact
from dispatcher.backends.kubernetes import podless
from dispatcher.backends.kubernetes.identity import PodIdentity
from dispatcher.backends.kubernetes.podless import Podless
from dispatcher.backends.kubernetes.table import PodTable
from dispatcher.domain.workload import WorkloadKind

SCOPES = ("one", "two")


@pytest.fixture
def table():
    return PodTable(lambda namespace: namespace)


@pytest.fixture
def now():
    return [1000.0]


@pytest.fixture
def check(table, now):
    """Return a function that looks after some seconds, and returns what is given up."""
    looks = Podless(table, lambda: now[0])

    def check(seconds=podless.PATIENCE):
        now[0] += seconds
        return set(looks.find(["token"], SCOPES))

    return check


def take_up(table, external_id=None):
    table.take_up([Artefact("token", WorkloadKind.CALLBACK, external_id)])


def list_all(table):
    for scope in SCOPES:
        table.listed(scope, {}, ())


def test_it_is_given_up_after_a_while_of_complete_knowledge(table, check):
    take_up(table)
    table.listed("one", {}, ())
    assert [check(), check()] == [set(), set()], "one of the scopes was never listed"
    table.listed("two", {}, ())
    assert [check(), check(1), check()] == [set(), set(), {"token"}]


def test_one_whose_pod_is_there_is_not(table, check):
    take_up(table)
    list_all(table)
    assert check() == set()
    table.seen(PodIdentity("token", WorkloadKind.CALLBACK, "one", "pod", "uid"), None)
    assert [check(), check()] == [set(), set()]


def test_one_whose_pod_was_known_is_left_to_what_is_observed_of_it(table, check):
    take_up(table, "one/pod")
    list_all(table)
    assert [check(), check()] == [set(), set()]
