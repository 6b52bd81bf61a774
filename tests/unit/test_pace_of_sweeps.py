# SPDX-License-Identifier: Apache-2.0
"""How often pages of the tour are read: a large installation must not spend its scheduler's time on it."""

from __future__ import annotations

import pytest

from dispatcher.dispatch.tour import LONGEST_INTERVAL, LONGEST_TOUR, SHARE, SWEEP_INTERVAL, Pace


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def next_page_after(clock: Clock, pace: Pace, *, latest: float) -> float:
    """Return after how many seconds the pace lets the next page begin."""
    began = clock.now
    while not pace.begins(tour=False):
        clock.now += 0.01
        assert clock.now - began <= latest + 0.02, "the next page is late"
    return clock.now - began


@pytest.mark.parametrize(
    ("took", "interval"),
    [
        pytest.param(0.001, SWEEP_INTERVAL, id="a-short-one"),
        pytest.param(0.04, 0.04 / SHARE, id="a-share-of-the-time"),
        pytest.param(2.0, LONGEST_INTERVAL, id="never-more-rarely-than-that"),
    ],
)
def test_a_tour_of_one_page_waits_by_how_long_the_last_one_took(
    clock: Clock, took: float, interval: float
) -> None:
    pace = Pace(clock)
    assert pace.begins(tour=True)
    clock.now += took
    pace.ended(pages=1, left=0)
    assert next_page_after(clock, pace, latest=interval) == pytest.approx(interval, abs=0.03)


@pytest.mark.parametrize(
    ("took", "interval"),
    [
        pytest.param(0.002, 0.002 / SHARE, id="a-share-of-the-time"),
        pytest.param(0.5, (LONGEST_TOUR - 0.5) / 19, id="the-tour-gets-round-in-time"),
    ],
)
def test_the_pages_of_a_tour_follow_each_other(clock: Clock, took: float, interval: float) -> None:
    pace = Pace(clock)
    assert pace.begins(tour=True)
    clock.now += took
    pace.ended(pages=1, left=19)
    assert next_page_after(clock, pace, latest=interval) == pytest.approx(interval, abs=0.03)


@pytest.mark.parametrize("loop", [0.1, 0.5, 0.9])
def test_a_tour_gets_round_in_time_whenever_heartbeats_come(clock: Clock, loop: float) -> None:
    pace = Pace(clock)
    began = clock.now
    assert pace.begins(tour=True)
    for left in range(24, 0, -1):
        clock.now += 0.05
        pace.ended(pages=25 - left, left=left)
        clock.now += loop - 0.05
        while not pace.begins(tour=False):
            clock.now += loop
    assert clock.now - began <= LONGEST_TOUR + 2 * loop


def test_the_next_tour_follows_one_of_many_pages_as_its_pages_do(clock: Clock) -> None:
    pace = Pace(clock)
    assert pace.begins(tour=True)
    clock.now += LONGEST_TOUR
    assert pace.begins(tour=False)
    clock.now += 1.0
    pace.ended(pages=20, left=0)
    assert next_page_after(clock, pace, latest=LONGEST_TOUR / 20) == pytest.approx(
        LONGEST_TOUR / 20, abs=0.03
    )


def test_a_tour_begins_no_sooner_than_that_after_the_last_one_began(clock: Clock) -> None:
    pace = Pace(clock)
    assert pace.begins(tour=True)
    pace.ended(pages=1, left=1)
    clock.now += 1.0
    assert pace.begins(tour=False)
    pace.ended(pages=2, left=0)
    assert next_page_after(clock, pace, latest=4.0) == pytest.approx(SWEEP_INTERVAL - 1.0, abs=0.03)


def test_one_that_failed_is_repeated_at_once(clock: Clock) -> None:
    pace = Pace(clock)
    assert pace.begins(tour=True)
    assert pace.begins(tour=True)


def test_it_can_be_asked_for(clock: Clock) -> None:
    pace = Pace(clock)
    pace.begins(tour=True)
    pace.ended(pages=1, left=0)
    assert not pace.begins(tour=True)
    pace.soon()
    assert pace.begins(tour=True)
