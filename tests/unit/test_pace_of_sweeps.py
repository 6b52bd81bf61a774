# SPDX-License-Identifier: Apache-2.0
"""How often the sweep runs: a large installation must not spend its scheduler's time on it."""

from __future__ import annotations

import pytest

from dispatcher.dispatch.sweep import LONGEST_INTERVAL, SWEEP_INTERVAL, Pace


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("took", "interval"),
    [
        pytest.param(0.001, SWEEP_INTERVAL, id="a-short-one"),
        pytest.param(0.08, 8.0, id="a-hundredth-of-the-time"),
        pytest.param(2.0, LONGEST_INTERVAL, id="never-more-rarely-than-that"),
    ],
)
def test_the_next_one_waits_by_how_long_the_last_one_took(clock: Clock, took: float, interval: float) -> None:
    pace = Pace(clock)
    assert pace.begins()
    clock.now += took
    pace.ended()
    clock.now += interval - 0.01
    assert not pace.begins()
    clock.now += 0.02
    assert pace.begins()


def test_one_that_failed_is_repeated_at_once(clock: Clock) -> None:
    pace = Pace(clock)
    assert pace.begins()
    assert pace.begins()


def test_it_can_be_asked_for(clock: Clock) -> None:
    pace = Pace(clock)
    pace.begins()
    pace.ended()
    assert not pace.begins()
    pace.soon()
    assert pace.begins()
