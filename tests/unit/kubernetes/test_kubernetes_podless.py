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
def list_all(table, now):
    """Return a function that lists scopes anew; asked for after what was done before."""

    def list_all(scopes=SCOPES):
        now[0] += 1
        for scope in scopes:
            table.listed(scope, {}, (), begun=now[0])

    return list_all


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


def test_it_is_given_up_after_a_while_of_complete_knowledge(table, check, list_all):
    take_up(table)
    assert check() == set()
    list_all(["one"])
    assert [check(), check()] == [set(), set()], "one of the scopes was never listed"
    list_all(["two"])
    assert check(1) == {"token"}


def test_it_takes_a_while_however_new_the_list_is(table, check, list_all):
    take_up(table)
    assert check() == set()
    list_all()
    assert [check(1), check()] == [set(), {"token"}]


def test_a_watch_that_is_cut_off_shows_no_pod_and_proves_nothing(table, check, list_all):
    """The one that made the pod died before it noted where it is; the watch here was silent meanwhile."""
    list_all()
    take_up(table)
    assert [check() for _ in range(5)] == [set()] * 5, "the list is older than the pod may be"
    table.seen(PodIdentity("token", WorkloadKind.CALLBACK, "one", "pod", "uid"), None)
    list_all()
    assert [check(), check()] == [set(), set()]


def test_one_whose_pod_is_there_is_not(table, check, list_all):
    take_up(table)
    assert check() == set()
    list_all()
    table.seen(PodIdentity("token", WorkloadKind.CALLBACK, "one", "pod", "uid"), None)
    assert [check(), check()] == [set(), set()]


def test_one_whose_pod_was_known_is_left_to_what_is_observed_of_it(table, check, list_all):
    take_up(table, "one/pod")
    assert check() == set()
    list_all()
    assert [check(), check()] == [set(), set()]
