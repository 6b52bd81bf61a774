# SPDX-License-Identifier: Apache-2.0
"""What is read of results in one call, and what the reader is told of what is waited for."""

from __future__ import annotations

from functools import partial

import pytest

from dispatcher.backends.base import Observation
from dispatcher.backends.celery import results as results_module
from dispatcher.backends.celery.results import READ_SECONDS, Results
from dispatcher.backends.celery.watched import Changes, Watched


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


class SlowStore:
    """A store that takes its time, has what a test puts there, and fails when a test says so."""

    def __init__(self, clock, seconds=0.0):
        self.clock = clock
        self.seconds = seconds
        self.error = None
        self.stored = {}
        self.reads = []

    def read(self, tokens):
        if self.error is not None:
            raise self.error
        self.clock.now += self.seconds
        self.reads.append(list(tokens))
        for token in tokens:
            if token in self.stored:
                yield token, partial(dict, status=self.stored[token], result={"claimant": "one"})


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return SlowStore(clock)


@pytest.fixture
def results(monkeypatch, clock, store):
    monkeypatch.setattr(results_module, "CHUNK", 10)
    made = Results(lambda: None, clock)
    monkeypatch.setattr(made, "_opened", lambda: store)
    return made


def tokens(count):
    return [f"token-{number:03}" for number in range(count)]


def ended(token):
    return Observation(token, ok=True, claimant="nonce:one")


class TestReading:
    def test_what_is_quickly_read_is_read_at_once(self, results, store):
        results.follow(Changes(frozenset(tokens(35))))
        assert [len(read) for read in store.reads] == [10, 10, 10, 5]

    def test_a_call_reads_a_part_of_what_takes_long(self, results, store):
        store.seconds = 0.6 * READ_SECONDS
        results.follow(Changes(frozenset(tokens(50))))
        assert len(store.reads) == 2

    def test_all_are_read_in_turn(self, results, store):
        store.seconds = 2 * READ_SECONDS
        asked = tokens(30)
        results.follow(Changes(frozenset(asked)))
        for _ in range(5):
            results.follow(Changes())
        read = [set(read) for read in store.reads]
        assert set().union(*read[:3]) == set(asked)
        assert read[3:] == read[:3]

    def test_an_ending_that_is_found_is_told_until_nobody_waits_for_it(self, results, store):
        store.seconds = 2 * READ_SECONDS
        asked = tokens(30)
        store.stored[asked[0]] = "SUCCESS"
        told = [results.follow(Changes(frozenset(asked)))]
        told += [results.follow(Changes()) for _ in range(3)]
        assert told[-1] == [ended(asked[0])]
        assert told[2:] == [told[-1]] * 2, "once found, it is told in each call"
        assert results.follow(Changes(dropped=frozenset(asked[:1]))) == []
        store.reads.clear()
        for _ in range(4):
            results.follow(Changes())
        assert asked[0] not in set().union(*store.reads)

    def test_what_failed_is_read_again_and_what_is_waited_for_is_known_all_the_same(self, results, store):
        store.error = OSError("away")
        with pytest.raises(OSError, match="away"):
            results.follow(Changes(frozenset(tokens(5))))
        store.error = None
        results.follow(Changes(dropped=frozenset(tokens(1))))
        assert set(store.reads[0]) == set(tokens(5)[1:])


class TestWatched:
    @pytest.fixture
    def watched(self):
        made = Watched()
        made.add(["one", "two"])
        return made

    def test_a_reader_is_told_of_each_change_once(self, watched):
        reader = object()
        assert watched.changes(reader) == Changes(frozenset({"one", "two"}))
        watched.told(reader)
        assert watched.changes(reader) == Changes()
        watched.add(["three"])
        watched.drop(["one", "never-seen"])
        assert watched.changes(reader) == Changes(frozenset({"three"}), frozenset({"one"}))
        assert "one" not in watched
        assert len(watched) == 2

    def test_what_a_reader_was_not_told_of_stays(self, watched):
        reader = object()
        watched.told(reader)
        watched.drop(["one"])
        assert watched.changes(reader) == watched.changes(reader) == Changes(dropped=frozenset({"one"}))

    def test_another_reader_is_told_everything(self, watched):
        watched.told(object())
        watched.drop(["one"])
        assert watched.changes(object()) == Changes(frozenset({"two"}))

    def test_the_last_word_counts(self, watched):
        reader = object()
        watched.told(reader)
        watched.drop(["one"])
        watched.add(["one"])
        watched.add(["three"])
        watched.drop(["three"])
        assert watched.changes(reader) == Changes(frozenset({"one"}), frozenset({"three"}))
