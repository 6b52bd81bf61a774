# SPDX-License-Identifier: Apache-2.0
"""A worker claims a callback at the moment at which its time is over. Never do both succeed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from airflow.utils.session import create_session

from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState
from dispatcher.domain.protocol import Permit
from dispatcher.domain.wire import RefusalReason
from dispatcher.fence import callback_claims
from dispatcher.ledger import store
from dispatcher.ledger.subjects import lock_callback
from tests.support import callback_dispatching as on
from tests.support import dispatching as run
from tests.support import rows

BLOCKED = 0.5
"""Seconds after which what has not ended waits for a lock."""


@pytest.fixture
def executor(airflow_db, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_QUEUED_TIMEOUT", "120")
    return run.started_executor()


@pytest.fixture
def late(executor):
    """A callback whose time is over, and its token."""
    callback_id, token = on.sent_callback(executor)
    on.issued_ago(callback_id, timedelta(seconds=121))
    return callback_id, token


@contextmanager
def meanwhile(act, *arguments):
    """Let a thread do something, and make sure that it waits; the body ends what it waits for."""
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act, *arguments)
        with pytest.raises(TimeoutError):
            acting.result(BLOCKED)
        yield acting


def claim(session, callback_id, token):
    connection = session.connection()
    subject = lock_callback(connection, callback_id)
    return callback_claims.claim(connection, subject, token, "nonce:one", hostname="worker")


def claim_now(callback_id, token):
    with create_session(scoped=False) as session:
        return claim(session, callback_id, token)


def test_a_claim_that_is_being_made_stands(executor, late):
    with create_session(scoped=False) as session:
        assert claim(session, *late) is Permit.CLAIM
        with meanwhile(on.sweep, executor) as sweep:
            session.commit()
        assert sweep.result() == []
    assert run.launch_of(late[1]).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1


def test_a_claim_comes_too_late_for_one_that_is_being_given_up(executor, late):
    with create_session(scoped=False) as session:
        event, kind = LaunchEvent.EXPIRE, LaunchKind.CALLBACK
        assert store.record(session.connection(), event, late[1:], now=rows.utcnow(), kind=kind)
        with meanwhile(claim_now, *late) as claiming:
            session.commit()
        assert claiming.result().reason is RefusalReason.REVOKED
    assert not run.launch_of(late[1]).was_claimed
