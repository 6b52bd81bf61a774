# SPDX-License-Identifier: Apache-2.0
"""``[dispatcher] callback_queued_timeout``: a callback that nobody claims in time fails, with the reason."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.backends.base import Postponed
from dispatcher.domain.lifecycle import LaunchState
from tests.support import callback_dispatching as on
from tests.support import dispatching as run

LONG = timedelta(seconds=121)


@pytest.fixture
def executor(airflow_db, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_QUEUED_TIMEOUT", "120")
    return run.started_executor()


def test_it_fails_with_what_is_known_and_can_never_start(executor):
    callback_id, token = on.sent_callback(executor)
    executor.celery.waiting[token] = "no Celery worker consumes its queue 'callbacks'"
    assert on.sweep(executor) == []
    on.issued_ago(callback_id, LONG)

    ((key, (state, info)),) = on.sweep(executor)

    assert (key.id, state) == (str(callback_id), "failed")
    assert info == ("no worker started it within 120 s: no Celery worker consumes its queue 'callbacks'")
    assert run.launch_of(token).state is LaunchState.REVOKED
    assert not on.claim(callback_id, token)
    assert executor.slots_occupied == 0
    on.hear([(key, (state, info))])
    on.turn(executor, 2)
    assert on.settled(callback_id)
    assert executor.celery.revoked == {token}
    assert executor.celery.sends == [token], "a backlog is not sent again"


def test_one_that_was_never_sent_fails_too(executor):
    callback_id = on.new_callback()
    run.queue_callback(executor, callback_id)
    executor.celery.answers[on.token_of(callback_id)] = Postponed("the broker is away", retry_after=0.0)
    assert on.sweep(executor) == []
    on.issued_ago(callback_id, LONG)

    ((_, (state, info)),) = on.sweep(executor)
    assert (state, info) == ("failed", "no worker started it within 120 s")
    assert executor.slots_occupied == 0


def test_a_claim_that_comes_first_stands(executor):
    callback_id, token = on.sent_callback(executor)
    on.issued_ago(callback_id, LONG)
    assert on.claim(callback_id, token)

    assert on.sweep(executor) == []
    assert run.launch_of(token).state is LaunchState.CLAIMED
