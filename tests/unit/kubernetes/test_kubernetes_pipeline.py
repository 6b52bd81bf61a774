# SPDX-License-Identifier: Apache-2.0
"""Creations in the background."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from dispatcher.backends.base import BEGIN_SECONDS, Postponed, Sent, Underway
from dispatcher.backends.kubernetes.pipeline import CreationPipeline
from tests.support.backend_harness import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dispatcher.backends.base import Outcome


class Field:
    """A pipeline with one thread and a clock that stands, and creations that wait for the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pipeline = CreationPipeline(1, clock=lambda: self.now)
        self.begun: list[str] = []
        self.gate = threading.Event()
        self._began = threading.Event()

    def hold(self, token: str) -> None:
        """Hand over a creation that does not end before ``gate`` is open, and wait until it has begun."""

        def create() -> Outcome:
            self.begun.append(token)
            self._began.set()
            self.gate.wait(10)
            return Sent(token)

        assert self.pipeline.add({token: create}) == {token: Underway()}
        assert self._began.wait(10)

    def add(self, token: str) -> Underway | Postponed:
        """Hand over a creation that ends at once."""

        def create() -> Outcome:
            self.begun.append(token)
            return Sent(token)

        return self.pipeline.add({token: create})[token]

    def results(self, *tokens: str) -> dict[str, Outcome]:
        """Open the gate and return what became of the tokens."""
        self.gate.set()
        results: dict[str, Outcome] = {}

        def told() -> bool:
            results.update(self.pipeline.results())
            return results.keys() >= set(tokens)

        eventually(told, f"{tokens} are told")
        return results


@pytest.fixture
def field() -> Iterator[Field]:
    made = Field()
    yield made
    made.gate.set()
    made.pipeline.stop()


def test_no_thread_is_started_before_it_is_needed():
    before = threading.active_count()
    CreationPipeline(4).stop()
    assert threading.active_count() == before


def test_what_became_of_each_is_told_once(field):
    assert field.add("a") == field.add("b") == Underway()
    assert field.results("a", "b") == {"a": Sent("a"), "b": Sent("b")}
    assert field.pipeline.results() == {}


def test_a_token_that_is_underway_is_not_sent_a_second_time(field):
    field.hold("a")
    assert field.add("a") == Underway()
    field.results("a")
    assert field.begun == ["a"]


def test_rule_4_what_does_not_begin_soon_after_its_check_never_does(field):
    field.hold("a")
    field.add("b")
    field.now += BEGIN_SECONDS + 0.1
    results = field.results("a", "b")
    late = results["b"]
    assert results["a"] == Sent("a")
    assert isinstance(late, Postponed)
    assert (late.tried, late.ambiguous, late.retry_after) == (False, False, None)
    assert field.begun == ["a"]
    field.add("b")
    assert field.results("b") == {"b": Sent("b")}


def test_fault_79_a_pause_holds_for_all_and_no_try_is_counted(field):
    field.hold("a")
    field.add("b")
    field.pipeline.pause(30)
    field.pipeline.pause(10)
    refused = field.add("c")
    results = field.results("a", "b")
    assert results["a"] == Sent("a")
    for postponed in (refused, results["b"]):
        assert isinstance(postponed, Postponed)
        assert (postponed.tried, postponed.retry_after) == (False, 30)
    assert field.begun == ["a"]
    field.now += 30
    assert field.add("c") == Underway()
    assert field.results("c") == {"c": Sent("c")}


def test_a_pause_is_named_in_the_log_once(field, caplog):
    with caplog.at_level(logging.WARNING):
        for seconds in (5, 7, 6):
            field.pipeline.pause(seconds)
    assert [record.getMessage() for record in caplog.records] == [
        "The API server asks for a pause: no pod is created for 5 s"
    ]


def test_what_is_withdrawn_before_it_begins_never_does(field):
    field.hold("a")
    field.add("b")
    assert not field.pipeline.withdraw("b", then=pytest.fail)
    field.add("c")
    assert field.results("a", "c").keys() == {"a", "c"}
    assert field.begun == ["a", "c"]


def test_what_is_withdrawn_while_it_runs_is_dealt_with_when_it_has_ended(field):
    done = threading.Event()
    field.hold("a")
    assert field.pipeline.withdraw("a", then=done.set)
    assert not done.is_set()
    assert field.pipeline.is_creating("a")
    again = field.add("a")
    assert isinstance(again, Postponed)
    assert not again.tried
    field.gate.set()
    assert done.wait(10)
    assert not field.pipeline.is_creating("a")
    assert field.pipeline.results() == {}


def test_an_outcome_that_was_withdrawn_is_not_told(field):
    field.add("a")
    field.add("b")
    eventually(lambda: field.begun == ["a", "b"] and not field.pipeline.is_creating("b"), "both have ended")
    assert not field.pipeline.withdraw("a", then=pytest.fail)
    assert field.results("b") == {"b": Sent("b")}


def test_a_creation_that_raises_may_have_been_made(field, caplog):
    def create() -> Outcome:
        raise KeyError("bug")

    with caplog.at_level(logging.ERROR):
        field.pipeline.add({"a": create})
        result = field.results("a")["a"]
    assert isinstance(result, Postponed)
    assert result.ambiguous
    assert "Creating the pod of launch a failed" in caplog.text
    field.add("b")
    assert field.results("b") == {"b": Sent("b")}


def test_a_thread_outlives_what_follows_a_withdrawn_creation(field, caplog):
    def fail() -> None:
        raise RuntimeError("no more threads")

    field.hold("a")
    assert field.pipeline.withdraw("a", then=fail)
    with caplog.at_level(logging.ERROR):
        # One thread does both: had it ended, this would never be told.
        field.add("b")
        assert field.results("b") == {"b": Sent("b")}
    assert "What follows the creation of the pod of launch a failed" in caplog.text


def test_after_the_stop_nothing_follows_a_creation(field):
    field.hold("a")
    field.pipeline.withdraw("a", then=pytest.fail)
    field.pipeline.stop()
    field.gate.set()
    eventually(lambda: not field.pipeline.is_creating("a"), "it ends")


def test_nothing_begins_after_the_stop(field):
    field.hold("a")
    field.add("b")
    field.pipeline.stop()
    assert isinstance(field.add("c"), Postponed)
    field.gate.set()
    eventually(lambda: not any(one.name == "pod-creation-0" for one in threading.enumerate()), "it ends")
    assert field.begun == ["a"]
