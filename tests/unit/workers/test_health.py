# SPDX-License-Identifier: Apache-2.0
"""What the health command concludes from what it sees."""

from __future__ import annotations

import pytest

from workers.health import Look, judge


def look(waiting=0, *, received=5, held=0, prefetch=2, queues=("default",)):
    told = {"queues": list(queues), "received": received, "held": held, "prefetch": prefetch}
    return Look(told, waiting)


def judged(*looks, seconds=3):
    """Judge a worker that is seen like this, a second apart; the last look repeats."""
    seen = list(looks)
    clock = iter(range(1000))
    return judge(lambda: seen.pop(0) if len(seen) > 1 else seen[0], seconds, clock=lambda: next(clock))


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([look()], id="nothing waits"),
        pytest.param([look(3, held=2)], id="busy"),
        pytest.param([look(3, held=1, prefetch=0)], id="busy without a limit"),
        pytest.param([look(3), look(2, received=6)], id="takes one"),
        pytest.param([look(3), look(0)], id="others took them"),
        pytest.param([look(3), look(3, held=2)], id="full in a moment"),
    ],
)
def test_a_worker_that_consumes_is_healthy(looks):
    verdict = judged(*looks)
    assert (verdict.healthy, verdict.text) == (True, "consumes default")


def test_one_that_leaves_messages_where_they_are_is_not():
    verdict = judged(look(3))
    assert not verdict.healthy
    assert verdict.text == "takes nothing from default though 3 messages wait and it has room"


def test_one_that_does_not_answer_is_not():
    assert judged(Look(None)).text == "does not answer"
    assert not judged(look(3), Look(None)).healthy


def test_one_that_was_told_to_consume_no_queue_is_left_alone():
    assert judged(look(queues=())).healthy
