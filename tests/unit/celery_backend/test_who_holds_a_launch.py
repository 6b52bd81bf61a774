# SPDX-License-Identifier: Apache-2.0
"""What workers say of the callbacks that they run, when one of them is slow, old or in trouble."""

from __future__ import annotations

import pytest
from celery import Celery

from dispatcher.backends.celery import evidence
from dispatcher.backends.celery.evidence import Workers
from dispatcher.domain.wire import RUNNING_COMMAND

HELD = "held"
NOTHING = {}


def has(token):
    return {token: ["active", {}]}


class Worker:
    """Answers questions as a Celery worker does, by command.

    :param knows: its answer to Celery's own question
    :param runs: its answer to the guard's
    :param late_for: a question that it is too slow to answer in time
    """

    def __init__(self, knows=NOTHING, runs=(), late_for=None) -> None:
        self.late_for = late_for
        self._answers = {
            "active_queues": [{"name": "callbacks"}],
            "query_task": knows,
            RUNNING_COMMAND: runs if isinstance(runs, dict) else list(runs),
        }

    def answer(self, command):
        return None if command == self.late_for else self._answers[command]


class Post:
    """Carries questions to workers, whose answers come in their order, as kombu's mailbox does."""

    workers: list[Worker]

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def multi_call(self, command, _arguments, *, limit, **_):
        answers = ((f"worker-{n}", worker.answer(command)) for n, worker in enumerate(self.workers))
        return [{name: answer} for name, answer in answers if answer is not None][:limit]


@pytest.fixture
def held_by(monkeypatch):
    """Return a function that asks some workers once which launches they have."""
    monkeypatch.setattr(evidence, "Mailbox", Post)

    def ask(*workers):
        monkeypatch.setattr(Post, "workers", list(workers), raising=False)
        return Workers(Celery(broker="memory://"), None).hold([HELD])

    return ask


def test_workers_that_have_it_not(held_by):
    assert held_by(Worker(), Worker()) == frozenset()
    assert held_by() is None


def test_one_that_has_it(held_by):
    assert held_by(Worker(), Worker(knows=has(HELD))) == {HELD}
    assert held_by(Worker(), Worker(runs=[HELD])) == {HELD}


@pytest.mark.parametrize("holder", [{"knows": has(HELD)}, {"runs": [HELD]}], ids=["celery", "guard"])
def test_the_one_that_has_it_was_too_slow_for_the_first_question(held_by, holder):
    """The others are as many as were counted: they must not be all that is waited for."""
    assert held_by(Worker(), Worker(), Worker(late_for="active_queues", **holder)) == {HELD}


def test_one_without_the_guard_runs_nothing_that_was_claimed_by_it(held_by):
    assert held_by(Worker(), Worker(runs={"error": f"KeyError('{RUNNING_COMMAND}')"})) == frozenset()


def test_one_whose_answer_failed_tells_nothing(held_by):
    """Its sets may change under it: it may run the launch all the same."""
    failed = {"error": "RuntimeError('Set changed size during iteration')"}
    assert held_by(Worker(), Worker(runs=failed)) is None
    assert held_by(Worker(), Worker(late_for=RUNNING_COMMAND)) is None


def test_the_answer_of_another_does_not_stand_in_for_one_that_is_missing(held_by):
    late, silent = Worker(late_for="active_queues"), Worker(late_for="query_task")
    assert held_by(Worker(), late, silent) is None
