# SPDX-License-Identifier: Apache-2.0
"""What is concluded from looks at the broker, and when: two in a row have to agree."""

from __future__ import annotations

import logging
from concurrent.futures import Future

import pytest

from dispatcher.backends.celery import lookout
from dispatcher.backends.celery.evidence import Evidence
from dispatcher.backends.celery.lookout import Lookout

WAITING = {"one": "default", "two": "idle"}


class InstantLane:
    """Does everything at once."""

    def start(self, work):
        future = Future()
        try:
            future.set_result(work())
        except Exception as exc:  # noqa: BLE001  # as in a lane
            future.set_exception(exc)
        return future

    def expire(self):
        pass


class Broker:
    """Shows what the test says, and counts the looks."""

    def __init__(self) -> None:
        self.shown = []
        self.asked = []

    def gather(self, waiting):
        self.asked.append(dict(waiting))
        shown = self.shown.pop(0) if self.shown else saw()
        if isinstance(shown, Exception):
            raise shown
        return shown


def saw(*absent, unserved=(), workers=1):
    return Evidence(frozenset(absent), frozenset(unserved), workers)


@pytest.fixture
def now(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(lookout.time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def search(broker, now):
    return Lookout(InstantLane(), broker.gather, "")


def look(search, now, waiting=WAITING, *, seconds=lookout.LOOK_INTERVAL):
    """Let time pass, look, and return what is found; it is taken up with the next call."""
    now[0] += seconds
    search.findings(waiting)
    return search.findings(waiting)


def test_one_look_proves_nothing_and_two_do(search, broker, now):
    broker.shown = [saw("one"), saw("one", "two")]
    assert look(search, now).lost == frozenset()
    assert look(search, now).lost == {"one"}


def test_a_message_that_moved_between_two_looks_is_not_lost(search, broker, now):
    broker.shown = [saw("one"), saw(), saw("one")]
    assert [look(search, now).lost for _ in range(3)] == [frozenset()] * 3


def test_a_look_that_failed_breaks_the_row(search, broker, now):
    broker.shown = [saw("one"), OSError("the broker went away"), saw("one"), saw("one")]
    assert [look(search, now).lost for _ in range(4)] == [frozenset()] * 3 + [{"one"}]


def test_what_was_named_once_needs_two_more_looks(search, broker, now):
    broker.shown = [saw("one")] * 4
    assert [bool(look(search, now).lost) for _ in range(4)] == [False, True, False, True]


def test_what_was_claimed_meanwhile_is_not_lost(search, broker, now):
    broker.shown = [saw("one"), saw("one")]
    look(search, now)
    now[0] += lookout.LOOK_INTERVAL
    search.findings(WAITING)
    assert search.findings({"two": "idle"}).lost == frozenset()


def test_a_transport_that_tells_nothing_proves_nothing(search, broker, now):
    broker.shown = [None, None]
    look(search, now)
    assert look(search, now) == lookout.Findings()


def test_it_looks_seldom_and_soon_again_where_it_found_something(search, broker, now):
    look(search, now)
    look(search, now, seconds=lookout.LOOK_INTERVAL - 1)
    assert len(broker.asked) == 1
    broker.shown = [saw("one")]
    look(search, now, seconds=1)
    look(search, now, seconds=lookout.CONFIRM_INTERVAL)
    assert len(broker.asked) == 3


def test_it_does_not_look_where_nothing_waits(search, broker, now):
    look(search, now, {})
    assert broker.asked == []


def test_fault_23_a_queue_that_nobody_consumes_is_told_once_and_cleared(search, broker, now, caplog):
    caplog.set_level(logging.INFO)
    broker.shown = [saw(unserved=["idle"])] * 4 + [saw()]
    assert look(search, now).stranded == {}
    reason = "no Celery worker consumes its queue 'idle'"
    assert look(search, now).stranded == {"two": reason}
    assert search.why_waiting("two") == reason
    assert search.why_waiting("one") is None
    look(search, now)
    told = [one.getMessage() for one in caplog.records]
    assert told == [
        "Launches wait in the Celery queue 'idle', and no worker consumes it (others answer): "
        "start one with -Q idle."
    ]
    look(search, now, seconds=lookout.REPEAT_SECONDS)
    assert len(caplog.records) == 2, "it is repeated after a while"
    assert look(search, now).stranded == {}
    assert caplog.records[-1].getMessage() == "The Celery queue 'idle' is consumed again."


def test_fault_23_where_no_worker_answers_it_takes_longer(search, broker, now):
    broker.shown = [saw(unserved=["idle"], workers=0)] * lookout.LOOKS_IN_SILENCE
    found = [look(search, now).stranded for _ in range(lookout.LOOKS_IN_SILENCE)]
    assert found[:-1] == [{}] * (lookout.LOOKS_IN_SILENCE - 1)
    assert found[-1] == {"two": "no Celery worker answers, and none consumes its queue 'idle'"}
