# SPDX-License-Identifier: Apache-2.0
"""A7: two schedulers queue the same callback row. The body runs once, and both slots become free."""

from __future__ import annotations

import pytest
from airflow.utils.session import create_session

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState
from dispatcher.ledger import claims, store
from tests.support import dispatching as run
from tests.support import rows
from tests.support.service_dispatching import die

pytestmark = pytest.mark.usefixtures("airflow_db")


def claim(token: str, callback_id: str, claimant: str) -> bool:
    with create_session(scoped=False) as session:
        return claims.claim_callback(
            session.connection(), token, callback_id, claimant, hostname="worker", now=rows.utcnow()
        )


def report(token: str, callback_id: str) -> None:
    from airflow.models.callback import Callback

    with create_session(scoped=False) as session:
        store.record(
            session.connection(),
            LaunchEvent.END_OK,
            (token,),
            now=rows.utcnow(),
            kind=LaunchKind.CALLBACK,
        )
        session.get(Callback, rows.UUID(callback_id)).state = "success"


def test_one_of_two_launches_runs():
    first, second = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    for executor in (first, second):
        run.queue_callback(executor, callback_id)
    for executor in (first, second):
        run.loop(executor)
    ((one,), (other,)) = (list(executor.celery.artefacts) for executor in (first, second))
    assert one != other, "each scheduler issued a launch of its own"

    assert claim(one, str(callback_id), "nonce:one")
    assert not claim(other, str(callback_id), "nonce:other")

    report(one, str(callback_id))
    first.celery.end(Observation(one, ok=True))
    for executor in (first, second):
        executor.dispatcher.sweep_soon()
        assert run.loop(executor) == {}, "the callback has told its own state"
        run.loop(executor)
        assert executor.slots_occupied == 0
    assert run.launch_of(one).state is LaunchState.SUCCEEDED
    assert run.launch_of(other).state is LaunchState.DROPPED
    assert run.launch_of(other).settled_at is not None


def test_the_launch_that_was_dropped_says_nothing_while_the_other_runs():
    first, second = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    for executor in (first, second):
        run.queue_callback(executor, callback_id)
    run.loop(first)
    (token,) = first.celery.artefacts
    assert claim(token, str(callback_id), "nonce:one")

    assert run.loop(second) == {}, "a FAILED of the dropped launch would overwrite RUNNING"
    assert run.loop(second) == {}

    with create_session(scoped=False) as session:
        store.record(
            session.connection(), LaunchEvent.END_OK, (token,), now=rows.utcnow(), kind=LaunchKind.CALLBACK
        )
    events = list(run.loop(second).values())
    assert events == [("success", None)], "the known outcome, if nobody has written it yet"


def test_a_launch_queued_after_the_claim_is_not_sent():
    first, second = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    for executor in (first, second):
        run.queue_callback(executor, callback_id)
    run.loop(first)
    (token,) = first.celery.artefacts
    assert claim(token, str(callback_id), "nonce:one")

    run.loop(second)

    assert second.celery.sends == []
    assert second.slots_occupied == 0


def test_both_launches_are_lost_before_the_claim():
    """Neither waits for the other: one of them is launched again."""
    executors = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    for executor in executors:
        run.queue_callback(executor, callback_id)
    for executor in executors:
        run.loop(executor)
    first = {token for executor in executors for token in executor.celery.artefacts}
    for executor in executors:
        for token in executor.celery.artefacts:
            executor.celery.end(Observation(token, ok=False, reason="killed", by_infrastructure=True))
    for _ in range(2):
        for executor in executors:
            assert run.loop(executor) == {}
    (again,) = {token for executor in executors for token in executor.celery.artefacts} - first
    assert run.launch_of(again).state is LaunchState.SUBMITTED
    assert not any(run.launch_of(token).open for token in first)
    assert sorted(executor.slots_occupied for executor in executors) == [0, 1]


@pytest.mark.parametrize("newer_sends", [False, True])
def test_both_launches_come_into_one_hand_and_the_newer_one_does_not_run(newer_sends):
    """The older one, which was never sent, has its turn then."""
    first, second = run.started_executor(), run.started_executor()
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    for executor in (first, second):
        run.queue_callback(executor, callback_id)
    ((older,), (newer,)) = ([one.token for one in each.dispatcher.in_flight()] for each in (first, second))
    heir, dead = (second, first) if newer_sends else (first, second)
    run.loop(heir)
    die(dead)
    heir.dispatcher.sweep_soon()
    for _ in range(3):
        assert run.loop(heir) == {}
    assert heir.slots_occupied == 1
    assert newer in heir.celery.sends

    heir.celery.end(Observation(newer, ok=False, reason="exit code 1"))
    for _ in range(3):
        assert run.loop(heir) == {}, "the other may still run it"
    assert heir.celery.sends.count(older) == 1
    assert heir.slots_occupied == 1
    assert claim(older, str(callback_id), "nonce:older")
    report(older, str(callback_id))
    for _ in range(3):
        assert run.loop(heir) == {}
    assert heir.slots_occupied == 0
    assert not heir.dispatcher.in_flight()
    assert [run.launch_of(token).settled_at is None for token in (older, newer)] == [False, False]
