# SPDX-License-Identifier: Apache-2.0
"""A5: the scheduler dies with callbacks in every state. Today QUEUED and RUNNING ones are stuck for ever.

Right: the next scheduler finishes each exactly once: adopted where the work is found, sent where it is not,
and where nobody can know, FAILED with "outcome unknown".
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from tests.support import callback_dispatching as on
from tests.support import dispatching as run
from tests.support import service_dispatching as services

pytestmark = pytest.mark.usefixtures("airflow_db")

BACKENDS = ["celery", "kubernetes"]


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", request.param)
    return request.param


@pytest.fixture
def schedulers(backend):
    """Return the executor of a scheduler that is going to die, and that of another."""
    return run.started_executor(), run.started_executor()


def take_over(dead, live):
    """Let one scheduler die, and the other one look for what it left; return what Airflow is told."""
    services.die(dead)
    live.dispatcher.adopt_soon()
    return on.turn(live, 2)


def finish(live, backend, callback_id, token):
    """Let a worker claim a launch and succeed; check that it ends well, and once."""
    assert on.claim(callback_id, token)
    on.report(callback_id, token)
    for _ in range(3):
        assert run.loop(live) == {}
    assert [one.state for one in services.launches_of(callback_id)] == [LaunchState.SUCCEEDED]
    assert on.settled(callback_id)
    assert live.slots_occupied == 0
    assert token in getattr(live, backend).removals


def test_before_the_dispatch(schedulers, backend):
    dead, live = schedulers
    callback_id = on.new_callback()
    run.queue_callback(dead, callback_id)
    token = on.token_of(callback_id)

    assert take_over(dead, live) == []

    assert getattr(live, backend).sends == [token]
    assert live.slots_occupied == 1
    finish(live, backend, callback_id, token)


def test_after_the_send_and_before_the_claim(schedulers, backend):
    """The same token is sent again: only one of two messages can claim, and a pod is there once."""
    dead, live = schedulers
    callback_id, token = on.sent_callback(dead)

    assert take_over(dead, live) == []

    assert getattr(live, backend).sends == [token]
    assert token in getattr(live, backend).watched
    assert on.claim(callback_id, token)
    assert not on.claim(callback_id, token, "nonce:another")
    on.report(callback_id, token)
    run.loop(live)
    assert live.slots_occupied == 0


def test_while_it_runs(schedulers, backend):
    dead, live = schedulers
    callback_id, token = on.sent_callback(dead)
    assert on.claim(callback_id, token)

    assert take_over(dead, live) == []

    assert getattr(live, backend).sends == [], "never again once claimed"
    assert token in getattr(live, backend).watched
    assert live.slots_occupied == 1
    on.report(callback_id, token)
    for _ in range(2):
        assert run.loop(live) == {}
    assert on.settled(callback_id)
    assert live.slots_occupied == 0


def test_while_it_runs_and_its_worker_goes_away_too(schedulers, backend):
    dead, live = schedulers
    callback_id, token = on.sent_callback(dead)
    assert on.claim(callback_id, token)
    on.ago(callback_id, claimed_at=timedelta(seconds=61))
    getattr(live, backend).forsaken[token] = "nothing runs it any more"

    take_over(dead, live)
    ((key, (state, info)),) = on.sweep(live)

    assert (key.id, state) == (str(callback_id), "failed")
    assert info.startswith("outcome unknown: a worker on worker-1 claimed it at 20")
    assert info.endswith(" UTC and told no result; nothing runs it any more")
    assert live.slots_occupied == 0
    assert getattr(live, backend).sends == []
    assert [one.state for one in services.launches_of(callback_id)] == [LaunchState.LOST]


def test_what_its_artefact_came_to_is_heard_of_by_the_next(schedulers, backend):
    """It ended without a result while no scheduler ran: a success of an artefact is none of the callback."""
    dead, live = schedulers
    callback_id, token = on.sent_callback(dead)
    assert on.claim(callback_id, token)
    getattr(live, backend).end(Observation(token, ok=True))

    take_over(dead, live)
    ((_, (state, info)),) = on.sweep(live)

    assert state == "failed"
    assert info == "outcome unknown: the callback's worker ended without reporting a result"


def test_one_that_runs_is_never_given_up_for_its_age(schedulers, backend):
    dead, live = schedulers
    callback_id, token = on.sent_callback(dead)
    assert on.claim(callback_id, token)
    on.ago(callback_id, issued_at=timedelta(days=2), claimed_at=timedelta(days=2))

    take_over(dead, live)
    assert on.sweep(live) == []
    assert services.launches_of(callback_id)[0].state is LaunchState.CLAIMED


def test_one_that_was_claimed_a_moment_ago_is_not_asked_after(schedulers, backend):
    dead, live = schedulers
    callback_id, token = on.sent_callback(dead)
    assert on.claim(callback_id, token)
    getattr(live, backend).forsaken[token] = "a worker that is slow to answer"

    take_over(dead, live)
    assert on.sweep(live) == []
