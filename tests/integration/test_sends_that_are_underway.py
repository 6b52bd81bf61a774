# SPDX-License-Identifier: Apache-2.0
"""Sends that a backend has taken on and answers later: the loop goes on, and the launch keeps its slot."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from dispatcher.backends.base import Postponed, Rejected, Sent, Underway
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger import store
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


@pytest.fixture
def executor():
    return run.started_executor()


@pytest.fixture
def token(executor):
    """A task whose send is underway."""
    queued = run.queue_task(executor, queue="kubernetes")
    executor.kubernetes.answers[queued] = Underway()
    run.loop(executor)
    return queued


def slots(executor):
    return len(executor.task_queue), len(executor.running)


def test_it_keeps_its_slot_and_is_not_sent_again(executor, token):
    for _ in range(3):
        assert run.loop(executor) == {}
    assert executor.kubernetes.sends == [token]
    assert slots(executor) == (0, 1)
    assert run.launch_of(token).state is LaunchState.SUBMITTED
    assert run.launch_of(token).external_id is None


def test_where_it_is_is_noted_when_it_is_told(executor, token):
    executor.kubernetes.outcomes[token] = Sent("somewhere")
    run.loop(executor)
    assert run.launch_of(token).external_id == "somewhere"
    assert slots(executor) == (0, 1)
    assert executor.kubernetes.sends == [token]


def test_what_never_began_is_checked_and_sent_again_at_once(executor, token):
    executor.kubernetes.answers[token] = Sent(token)
    executor.kubernetes.outcomes[token] = Postponed("its turn did not come", tried=False)
    run.loop(executor)
    assert slots(executor) == (1, 0)
    run.loop(executor)
    assert executor.kubernetes.sends == [token, token]
    assert slots(executor) == (0, 1)


def test_what_never_began_and_counts_no_more_is_dropped(executor, token):
    executor.kubernetes.outcomes[token] = Postponed("its turn did not come", tried=False)
    run.loop(executor)
    run.set_task(token, state=None, external_executor_id=None)
    run.loop(executor)
    assert run.launch_of(token).state is LaunchState.DROPPED
    assert executor.kubernetes.sends == [token]
    assert slots(executor) == (0, 0)


def test_what_failed_for_now_waits_with_its_slot_free(executor, token):
    executor.kubernetes.outcomes[token] = Postponed("busy", 60.0)
    run.loop(executor)
    run.loop(executor)
    assert executor.kubernetes.sends == [token]
    assert slots(executor) == (1, 0)


def test_what_is_rejected_fails_with_the_reason(executor, token):
    executor.kubernetes.outcomes[token] = Rejected("no such namespace")
    assert list(run.loop(executor).values()) == [("failed", "no such namespace")]
    assert run.launch_of(token).state is LaunchState.DROPPED
    assert slots(executor) == (0, 0)


def test_what_was_taken_from_us_meanwhile_is_not_queued_again(executor, token):
    key = next(iter(executor.running))
    executor.change_state(key, "failed")
    executor.kubernetes.outcomes[token] = Postponed("busy")
    run.loop(executor)
    run.loop(executor)
    assert executor.kubernetes.sends == [token]
    assert slots(executor) == (0, 0)


def test_where_an_artefact_of_an_ended_launch_is_is_noted_all_the_same(executor, token):
    executor.change_state(next(iter(executor.running)), "failed")
    executor.kubernetes.outcomes[token] = Sent("somewhere")
    run.loop(executor)
    assert run.launch_of(token).external_id == "somewhere"


def test_where_it_is_is_noted_when_the_database_is_back(monkeypatch, executor, token):
    def away(*_args):
        raise OperationalError("UPDATE", {}, Exception("the server closed the connection"))

    executor.kubernetes.outcomes[token] = Sent("somewhere")
    with monkeypatch.context() as patch:
        patch.setattr(store, "note_external_ids", away)
        run.loop(executor)
    assert run.launch_of(token).external_id is None
    # The backend told it once: there is nothing new when the database is back.
    run.loop(executor)
    assert run.launch_of(token).external_id == "somewhere"
    assert executor.kubernetes.sends == [token]


def test_higher_priority_is_handed_over_first(executor):
    weights = {"low": 1, "high": 9, "middle": 5}
    tokens = {
        task_id: run.queue_task(executor, task_id=task_id, queue="kubernetes", priority_weight=weight)
        for task_id, weight in weights.items()
    }
    run.loop(executor)
    assert executor.kubernetes.sends == [tokens["high"], tokens["middle"], tokens["low"]]
