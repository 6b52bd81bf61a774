# SPDX-License-Identifier: Apache-2.0
"""What the health command concludes from what it sees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery.worker import state as worker_state

from workers.consumption import tell_consumption
from workers.health import Look, judge


def look(waiting=0, *, consumes=True, received=5, held=0, prefetch=2, queues=("default",)):
    told = {
        "consumes": consumes,
        "queues": list(queues),
        "received": received,
        "held": held,
        "prefetch": prefetch,
    }
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


def test_one_without_a_consumer_was_not_told_so():
    """Its remote control came back after an outage, and its consumer did not."""
    verdict = judged(look(consumes=False, queues=()))
    assert (verdict.healthy, verdict.text) == (False, "answers, but has no consumer")


@pytest.fixture
def told(monkeypatch):
    """Return a function that asks a worker with a consumer like this."""

    def ask(*, consumer=True, prefetch=8, disable_prefetch=False, held=0):
        monkeypatch.setattr(worker_state, "reserved_requests", range(held))
        state = SimpleNamespace(
            consumer=SimpleNamespace(
                task_consumer=SimpleNamespace(queues=[]) if consumer else None,
                qos=SimpleNamespace(value=prefetch),
                pool=SimpleNamespace(num_processes=2),
                app=SimpleNamespace(conf=SimpleNamespace(worker_disable_prefetch=disable_prefetch)),
            )
        )
        return tell_consumption(state)

    return ask


def test_a_worker_tells_whether_it_has_a_consumer(told):
    assert told()["consumes"]
    assert not told(consumer=False)["consumes"]


@pytest.mark.parametrize(("prefetch", "most"), [(8, 2), (0, 2), (1, 1)])
def test_one_that_may_hold_no_more_than_it_runs_is_busy_sooner(told, prefetch, most):
    """Known by ``worker_disable_prefetch``; else it would be red whenever it is busy."""
    assert told(prefetch=prefetch)["prefetch"] == prefetch
    assert told(prefetch=prefetch, disable_prefetch=True)["prefetch"] == most
