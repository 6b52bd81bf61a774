# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from dispatcher.backends.celery import lane as lane_module
from dispatcher.backends.celery.lane import Lane, Patience, came_back

SECONDS = 10


class Hanging:
    """Work that does not come back until it is released."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._released = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> str:
        self.thread = threading.current_thread()
        self._begun.set()
        assert self._released.wait(SECONDS)
        return "late"

    def wait_until_begun(self) -> None:
        assert self._begun.wait(SECONDS)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def hanging():
    work = Hanging()
    yield work
    work.release()


@pytest.fixture
def lane():
    lane = Lane("lane of a test", SECONDS, lambda: None)
    yield lane
    lane.close()


def test_work_is_done_in_one_thread_that_is_not_the_callers(lane):
    threads = [lane.start(threading.current_thread).result(SECONDS) for _ in range(3)]

    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon


def test_no_thread_is_started_before_there_is_work():
    before = threading.active_count()

    Lane("idle", SECONDS, lambda: None).close()

    assert threading.active_count() == before


def test_an_error_is_left_in_the_future_and_ends_nothing(lane):
    future = lane.start(lambda: 1 / 0)

    assert came_back(future, SECONDS)
    assert isinstance(future.exception(), ZeroDivisionError)
    assert lane.start(lambda: "next").result(SECONDS) == "next"


def test_one_piece_of_work_at_a_time(lane, hanging):
    first = lane.start(hanging)

    assert not came_back(first, 0)
    assert lane.start(lambda: "second") is None

    hanging.release()
    assert first.result(SECONDS) == "late"
    assert lane.start(lambda: "second").result(SECONDS) == "second"


def test_work_that_hangs_for_too_long_is_given_up(hanging):
    given_up = []
    lane = Lane("impatient", 0, lambda: given_up.append(True))
    first = lane.start(hanging)
    hanging.wait_until_begun()

    lane.expire()

    assert given_up == [True]
    assert isinstance(first.exception(0), TimeoutError)
    second = lane.start(threading.current_thread)
    assert second.result(SECONDS) is not hanging.thread
    lane.close()


def test_what_was_given_up_ends_its_thread_and_changes_nothing(hanging):
    lane = Lane("impatient", 0, lambda: None)
    first = lane.start(hanging)
    hanging.wait_until_begun()
    lane.expire()

    hanging.release()
    hanging.thread.join(SECONDS)

    assert not hanging.thread.is_alive()
    assert isinstance(first.exception(0), TimeoutError)


def test_work_that_came_back_is_never_given_up():
    given_up = []
    lane = Lane("impatient", 0, lambda: given_up.append(True))
    lane.start(lambda: None).result(SECONDS)

    lane.expire()

    assert given_up == []
    lane.close()


def test_the_thread_ends_when_the_lane_is_closed(lane):
    thread = lane.start(threading.current_thread).result(SECONDS)

    lane.close()

    thread.join(SECONDS)
    assert not thread.is_alive()


class Clock:
    """Seconds that pass when the test says so, and with each wait."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def waited(monkeypatch, clock):
    """Let waiting take no time, and return for how long was waited, in seconds."""
    seconds = []

    def came_back_at_once(future, patience):
        seconds.append(patience)
        clock.now += 0 if future.done() else patience
        return future.done()

    monkeypatch.setattr(lane_module, "came_back", came_back_at_once)
    return seconds


def test_a_service_that_is_slow_is_waited_for_once(clock, waited):
    patience = Patience(clock)
    slow, slower = Future(), Future()
    assert not patience.wait(slow, 1.0)
    assert not patience.wait(slow, 0)
    clock.now += 2.0
    slow.set_result(None)
    assert patience.wait(slow, 0)

    assert not patience.wait(slower, 1.0)
    assert waited == [1.0, 0.0, 0.0, 0.0]


def test_a_service_that_is_quick_again_is_waited_for_again(clock, waited):
    patience = Patience(clock)
    slow, quick, next_one = Future(), Future(), Future()
    assert not patience.wait(slow, 1.0)
    clock.now += 2.0
    slow.set_result(None)
    assert not patience.wait(quick, 1.0)
    clock.now += 0.5
    quick.set_result(None)

    assert not patience.wait(next_one, 1.0)
    assert waited == [1.0, 0.0, 1.0]
