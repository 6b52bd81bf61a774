# SPDX-License-Identifier: Apache-2.0
"""Moments at which a scheduler may stall, and what it may do no more when it wakes up."""

from __future__ import annotations

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select, update

from dispatcher.backends.base import BEGIN_SECONDS, Observation
from dispatcher.dispatch.flights import Flight
from dispatcher.dispatch.signing import Signer
from dispatcher.dispatch.submit import Submitter
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.ledger import store
from dispatcher.ledger.models import LaunchRow
from tests.support import dispatching as run
from tests.support import rows
from tests.support.service_dispatching import die, orphan_check

pytestmark = pytest.mark.usefixtures("airflow_db")


def hand_over(executor, token: str) -> None:
    """Give a launch to another scheduler, as its adoption does."""
    with create_session(scoped=False) as session:
        taken = store.take_over(session.connection(), [token], owner="999999", dead=[str(executor.job_id)])
    assert taken == {token}


@pytest.fixture
def executor():
    return run.started_executor()


class StallingSubmitter:
    """The submitter of an executor, whose process stalls after the check of a batch was committed."""

    def __init__(self, executor, seconds: float) -> None:
        self.now = 0.0
        self._seconds = seconds
        self.submitter = Submitter(
            backends={BackendName.CELERY: executor.celery, BackendName.KUBERNETES: executor.kubernetes},
            signer=Signer(lambda: executor.jwt_generator, 600),
            owner=str(executor.job_id),
            session=self._session,
            clock=lambda: self.now,
            utcnow=rows.utcnow,
        )

    def _session(self):
        return _Stalling(self, self._seconds)


class _Stalling:
    def __init__(self, owner: StallingSubmitter, seconds: float) -> None:
        self._owner, self._seconds = owner, seconds
        self._session = create_session(scoped=False)

    def __enter__(self):
        return self._session.__enter__()

    def __exit__(self, *exc_info):
        self._session.__exit__(*exc_info)
        self._owner.now += self._seconds


@pytest.mark.parametrize("kind", LaunchKind)
@pytest.mark.parametrize(("stalled", "sent"), [(1.0, True), (BEGIN_SECONDS + 1.0, False)])
def test_nothing_is_sent_on_a_check_that_has_grown_old(executor, kind, stalled, sent):
    if kind is LaunchKind.TASK:
        run.queue_task(executor)
    else:
        with create_session(scoped=False) as session:
            callback_id = rows.make_callback(session).id
        run.queue_callback(executor, callback_id)
    (flight,) = executor.dispatcher.in_flight()
    outcome = StallingSubmitter(executor, stalled).submitter.submit([flight])
    assert executor.celery.sends == ([flight.token] if sent else [])
    assert outcome.sent == ({flight.token} if sent else set())
    # It is checked again at once: nothing failed.
    assert outcome.waiting == (set() if sent else {flight.token})
    assert isinstance(flight, Flight)
    assert flight.attempts == 0


def test_what_another_settles_is_not_taken_away(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    assert run.claim(token)
    run.set_task(token, state="success")
    executor.celery.end(Observation(token, ok=True, claimant="nonce:one"))
    # Seen to be done with, and not yet settled, when it stalls; the next one takes what has ended too.
    executor.heartbeat()
    assert executor.get_event_buffer() == {}
    with create_session(scoped=False) as session:
        session.execute(update(LaunchRow).values(scheduler_job_id="999999"))
    for _ in range(2):
        assert run.loop(executor) == {}
    assert executor.celery.removals == []
    assert run.launch_of(token).settled_at is None


def test_what_another_took_over_is_not_looked_for_any_more(executor):
    """The new owner deletes its result: it would be asked for as long as this process lives."""
    token, kept = run.queue_task(executor), run.queue_task(executor, map_index=1)
    run.loop(executor)
    hand_over(executor, token)
    executor.dispatcher.sweep_soon()
    for _ in range(2):
        run.loop(executor)
    assert [flight.token for flight in executor.dispatcher.in_flight()] == [kept]
    assert executor.celery.released == {token}
    assert executor.celery.removals == []


def test_what_another_owns_is_not_revoked(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    hand_over(executor, token)
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == token))
        with pytest.raises(NotImplementedError, match="another scheduler"):
            executor.revoke_task(ti=ti)
    assert run.launch_of(token).state is LaunchState.SUBMITTED
    assert executor.celery.revoked == set()


def test_what_the_scheduler_says_of_another_ones_task_is_not_written(executor):
    token = run.queue_task(executor)
    run.loop(executor)
    assert run.claim(token)
    key = next(iter(executor.running))
    hand_over(executor, token)
    executor.fail(key, "no heartbeat")
    for _ in range(2):
        assert run.loop(executor) == {}
    assert run.launch_of(token).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 0


def test_of_two_successors_the_one_that_airflow_takes_for_the_owner_reports(executor):
    """The first takes the running launch as an orphan, the second is given its task by Airflow's own look."""
    token = run.queue_task(executor)
    run.loop(executor)
    assert run.claim(token)
    die(executor)
    first, second = run.started_executor(), run.started_executor()
    run.loop(first)
    assert run.launch_of(token).scheduler_job_id == str(first.job_id)
    assert orphan_check(second) == 0
    for one in (first, second):
        one.dispatcher.adopt_soon()
        run.loop(one)
    assert run.launch_of(token).scheduler_job_id == str(second.job_id)
    ending = Observation(token, ok=False, reason="OOMKilled", claimant="nonce:one")
    for one in (first, second):
        one.celery.end(ending)
    assert run.loop(first) == {}
    assert [state for state, _ in run.loop(second).values()] == ["failed"]
    assert (first.slots_occupied, second.slots_occupied) == (0, 0)


def test_a_live_schedulers_launches_are_left_to_it(executor):
    """However late its heartbeat is: it is dead when a scheduler of Airflow has declared it dead."""
    other = run.started_executor(heartbeat_age=25.0)
    token = run.queue_task(other)
    run.loop(other)
    assert run.claim(token)
    for _ in range(2):
        executor.dispatcher.adopt_soon()
        run.loop(executor)
    assert run.launch_of(token).scheduler_job_id == str(other.job_id)
    assert executor.slots_occupied == 0


def test_what_the_dead_left_is_taken_over_at_the_next_sweep(executor):
    """No task of the dead one is there to be adopted: only our own look finds a callback."""
    dead = run.started_executor()
    run.loop(executor)
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(dead, callback_id)
    die(dead)
    run.loop(executor)
    assert executor.celery.sends == []
    executor.dispatcher.sweep_soon()
    for _ in range(2):
        run.loop(executor)
    assert len(executor.celery.sends) == 1
