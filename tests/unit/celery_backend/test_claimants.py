# SPDX-License-Identifier: Apache-2.0
"""When a claimed callback counts as run by nobody: the workers have to show it again and again."""

from __future__ import annotations

import pytest

from dispatcher.backends.celery import claimants
from dispatcher.backends.celery.claimants import Claimants
from tests.unit.celery_backend.test_lookout import InstantLane

PATIENCE = 90.0
LOOKS = 3
"""Looks that fit into the patience."""


class Workers:
    """Answer what the test says, and count the questions."""

    def __init__(self) -> None:
        self.answers = []
        self.asked = []

    def ask(self, tokens):
        self.asked.append(set(tokens))
        answer = self.answers.pop(0) if self.answers else frozenset()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def now(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(claimants.time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def workers():
    return Workers()


@pytest.fixture
def check(workers, now):
    """Return a function that lets time pass, looks, and returns what is given up."""
    looks = Claimants(InstantLane(), workers.ask, PATIENCE)

    def check(claimed=("one",), seconds=claimants.LOOK_INTERVAL):
        now[0] += seconds
        looks.abandoned(claimed)
        return set(looks.abandoned(claimed))

    return check


def held(*tokens):
    return frozenset(tokens)


def test_it_takes_as_many_looks_as_fit_into_the_patience(check):
    assert [check() for _ in range(LOOKS)] == [set()] * (LOOKS - 1) + [{"one"}]
    assert check() == {"one"}, "it is named until it is asked for no more"
    assert check(()) == set()


def test_one_that_a_worker_has_is_never_given_up(check, workers):
    workers.answers = [held(), held(), held("one"), held(), held(), held()]
    assert [check() for _ in range(6)] == [set()] * 5 + [{"one"}]


@pytest.mark.parametrize(
    "nothing", [None, OSError("the broker went away")], ids=["not all answer", "no broker"]
)
def test_a_look_that_tells_nothing_counts_for_nothing(check, workers, nothing):
    workers.answers = [held(), nothing, nothing, nothing, held(), held()]
    assert [check() for _ in range(6)] == [set()] * 5 + [{"one"}]


def test_each_is_judged_by_itself(check, workers):
    workers.answers = [held("two")] * LOOKS
    assert [check(("one", "two")) for _ in range(LOOKS)][-1] == {"one"}
    assert workers.asked == [{"one", "two"}] * LOOKS


def test_nobody_is_asked_where_nothing_runs_and_not_more_often_than_needed(check, workers):
    check(())
    assert workers.asked == []
    check()
    check(seconds=1)
    assert len(workers.asked) == 1


def test_however_short_the_patience_one_look_proves_nothing(workers, now):
    looks = Claimants(InstantLane(), workers.ask, 0.1)
    looks.abandoned(["one"])
    assert looks.abandoned(["one"]) == {}
