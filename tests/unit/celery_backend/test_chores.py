# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from concurrent.futures import Future

import pytest

from dispatcher.backends.celery.chores import Chore, Outage

LOGGER = "dispatcher.backends.celery.chores"


class LaneOfATest:
    """Does work when the test says so, in the test's own thread."""

    def __init__(self) -> None:
        self.busy = False
        self.work = None

    def start(self, work):
        if self.busy or self.work is not None:
            return None
        self.future = Future()
        self.work = work
        return self.future

    def finish(self):
        work, self.work = self.work, None
        try:
            self.future.set_result(work())
        except OSError as exc:
            self.future.set_exception(exc)


class Service:
    """Remembers what it was asked for; may be away."""

    def __init__(self) -> None:
        self.away = False
        self.asked: list[set[str]] = []

    def __call__(self, tokens: list[str]) -> None:
        if self.away:
            raise OSError("connection refused")
        self.asked.append(set(tokens))


@pytest.fixture
def lane():
    return LaneOfATest()


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def outage():
    return Outage("The service")


@pytest.fixture
def chore(lane, service, outage):
    return Chore(lane, service, outage)


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_an_outage_is_told_once_and_its_end_once(caplog, outage):
    caplog.set_level(logging.INFO, LOGGER)
    outage.end()
    for _ in range(3):
        outage.begin("connection refused")
    assert outage.current
    outage.end()
    outage.end()

    assert [record.message for record in caplog.records] == [
        "The service is away: connection refused",
        "The service is back.",
    ]
    assert not outage.current


def test_what_was_added_is_done_at_once_and_only_once(lane, chore, service):
    chore.add(["a", "b"])
    chore.push(0)
    lane.finish()
    chore.push(0)
    chore.push(0)

    assert service.asked == [{"a", "b"}]
    assert lane.work is None


def test_nothing_is_begun_for_nothing(lane, chore):
    chore.push(0)

    assert lane.work is None


def test_it_waits_for_a_busy_lane(lane, chore, service):
    lane.busy = True
    chore.add(["a"])
    chore.push(0)
    lane.busy = False
    chore.push(0)
    lane.finish()

    assert service.asked == [{"a"}]


def test_what_comes_meanwhile_is_done_next(lane, chore, service):
    chore.add(["a"])
    chore.push(0)
    chore.add(["b"])
    lane.finish()
    chore.push(0)
    chore.push(0)
    lane.finish()

    assert service.asked == [{"a"}, {"b"}]


def test_it_is_tried_again_until_it_works(caplog, lane, chore, service, outage):
    service.away = True
    chore.add(["a"])
    for _ in range(3):
        chore.push(0)
        lane.finish()
        chore.push(0)
    assert outage.current
    assert warnings(caplog) == ["The service is away: connection refused"]

    service.away = False
    chore.push(0)
    lane.finish()
    chore.push(0)
    chore.push(0)

    assert service.asked == [{"a"}]
    assert lane.work is None
    assert not outage.current
