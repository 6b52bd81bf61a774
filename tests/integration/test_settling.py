# SPDX-License-Identifier: Apache-2.0
"""Settling (rule 14): once for each launch; a database that fails at it costs nothing that was observed."""

from __future__ import annotations

import pytest
from airflow.utils.state import TaskInstanceState
from sqlalchemy.exc import OperationalError

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger import store
from tests.support import dispatching as run
from tests.support import service_dispatching

pytestmark = pytest.mark.usefixtures("airflow_db")


def running(executor, task_id: str) -> str:
    token = run.queue_task(executor, task_id=task_id)
    run.loop(executor)
    assert run.claim(token)
    return token


def test_what_a_launch_left_is_removed_once():
    executor = run.started_executor()
    token = running(executor, "task")
    removed: list[str] = []
    remove = executor.celery.remove

    def note(artefacts) -> None:
        removed.extend(artefact.token for artefact in artefacts)
        remove(artefacts)

    executor.celery.remove = note
    run.set_task(token, state="success")
    executor.celery.end(Observation(token, ok=True, claimant="nonce:one"))
    for _ in range(4):
        run.loop(executor)

    assert removed == [token]
    assert run.launch_of(token).settled_at is not None


def test_a_database_that_fails_at_settling_costs_no_proof(monkeypatch):
    executor = run.started_executor()
    done, killed = running(executor, "done"), running(executor, "killed")
    run.set_task(done, state="success")
    executor.celery.end(Observation(done, ok=True, claimant="nonce:one"))
    assert run.loop(executor) == {}
    # From here on one launch may be settled, and that fails; the other one is observed to end.
    executor.celery.end(Observation(killed, ok=False, reason="OOMKilled", claimant="nonce:one"))

    def away(*_args, **_options):
        raise OperationalError("UPDATE", {}, Exception("the server closed the connection"))

    with monkeypatch.context() as patch:
        patch.setattr(store, "settle", away)
        events = run.loop(executor)

    # Its heartbeat is fresh: only the proof that this is the claimant's own end tells it at once.
    assert list(events.values()) == [(TaskInstanceState.FAILED, "OOMKilled")]
    assert run.launch_of(done).settled_at is None
    run.loop(executor)
    assert run.launch_of(done).settled_at is not None


def test_a_superseded_launch_that_was_seen_to_end_is_not_revoked():
    executor = run.started_executor()
    old = running(executor, "task")
    # It deferred and is queued again before its message is seen to end.
    new = service_dispatching.queue_again(executor, run.launch_of(old).subject_id)
    run.loop(executor)
    assert run.launch_of(old).state is LaunchState.SUPERSEDED
    assert run.launch_of(old).settled_at is None
    executor.celery.end(Observation(old, ok=True, claimant="nonce:one"))
    for _ in range(3):
        run.loop(executor)

    assert run.launch_of(old).settled_at is not None
    assert executor.celery.revoked == set()
    assert run.launch_of(new).state is LaunchState.SUBMITTED
