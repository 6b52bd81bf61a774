# SPDX-License-Identifier: Apache-2.0
"""K6: the transaction that replaces a launch which never ran (rule 6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from airflow import settings
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import update

from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.ledger import claims, store
from dispatcher.ledger.relaunching import NotRelaunched, Relaunch, relaunch
from tests.support import rows
from tests.support.launches import OWNER, add_launch, add_launch_of

pytestmark = pytest.mark.usefixtures("airflow_db")

NOW = rows.utcnow()


def submitted_task(**columns):
    """Return the launch of a QUEUED task whose pod was made."""
    with settings.NonScopedSession.begin() as session:
        ti = rows.make_task_instance(session, queued_dttm=NOW - timedelta(minutes=5))
        values = {
            "state": LaunchState.SUBMITTED,
            "backend": BackendName.KUBERNETES,
            "external_id": "airflow/pod",
            "submitted_at": NOW,
            "queue": "kubernetes",
            "route_reason": "queue kubernetes",
            "team_name": "blue",
        }
        return add_launch_of(session, ti, **values | columns)


def submitted_callback(callback_id=None, **columns):
    with settings.NonScopedSession.begin() as session:
        callback_id = callback_id or str(rows.make_callback(session, state="queued").id)
        values = {"kind": LaunchKind.CALLBACK, "subject_id": callback_id, "task_id": None, "try_number": None}
        return add_launch(session, **values | {"state": LaunchState.SUBMITTED, "submitted_at": NOW} | columns)


def replace(launch, *, owner=OWNER, limit=3):
    order = Relaunch(token=str(uuid4()), owner=owner, limit=limit, reason="Evicted", now=NOW)
    with settings.NonScopedSession.begin() as session:
        return relaunch(session.connection(), launch, launch.subject_id, order)


def row_of(launch):
    with settings.NonScopedSession.begin() as session:
        ti = session.get(TaskInstance, UUID(launch.subject_id))
        return ti.state, ti.external_executor_id, ti.queued_dttm, ti.try_number


def read(token):
    with settings.NonScopedSession.begin() as session:
        return store.by_token(session.connection(), token)


def test_one_transaction_ends_the_old_launch_and_issues_the_new_one():
    old = submitted_task()
    new, number = replace(old)
    assert number == 1
    assert row_of(old) == ("queued", new.token, NOW, 1)
    ended = read(old.token)
    assert (ended.state, ended.end_reason, ended.ended_at) == (LaunchState.SUPERSEDED, "Evicted", NOW)
    assert new == read(new.token)
    assert new.sequence > old.sequence
    assert (new.state, new.external_id, new.submitted_at) == (LaunchState.ISSUED, None, None)
    assert (new.backend, new.queue, new.scheduler_job_id) == (old.backend, old.queue, OWNER)
    assert (new.subject_id, new.try_number, new.team_name) == (old.subject_id, 1, "blue")
    assert new.route_reason == "relaunch 1: queue kubernetes"


def test_the_bound_is_counted_in_the_ledger_and_begins_anew_with_a_launch_of_airflow():
    launch = submitted_task()
    for number in (1, 2):
        launch, counted = replace(launch, limit=2)
        assert counted == number
    assert launch.route_reason == "relaunch 2: queue kubernetes"
    assert replace(launch, limit=2) is NotRelaunched.SPENT
    assert read(launch.token).unclaimed
    assert row_of(launch)[1] == launch.token

    with settings.NonScopedSession.begin() as session:
        ti = session.get(TaskInstance, UUID(launch.subject_id))
        ti.external_executor_id = str(uuid4())
        session.flush()
        later = add_launch_of(session, ti)
    assert replace(later, limit=2)[1] == 1


CHANGES = {
    "it runs": {"state": "running"},
    "the user failed it": {"state": "failed"},
    "it waits for its turn": {"state": "scheduled"},
    "it is queued under another token": {"external_executor_id": "0b7e4a54-55f5-4f0e-8d1a-1f8f0a6e0001"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_does_not_wait_for_this_launch_is_left_alone(change):
    launch = submitted_task()
    with settings.NonScopedSession.begin() as session:
        session.execute(update(TaskInstance).values(**change))
    before = row_of(launch)
    assert replace(launch) is NotRelaunched.MOVED_ON
    assert row_of(launch) == before
    assert read(launch.token) == launch


def test_what_another_scheduler_took_over_is_left_alone():
    launch = submitted_task()
    assert replace(launch, owner="2") is NotRelaunched.MOVED_ON
    assert row_of(launch)[1] == launch.token


def test_what_was_claimed_meanwhile_is_left_alone():
    launch = submitted_task()
    with settings.NonScopedSession.begin() as session:
        assert claims.claim_task(
            session.connection(), launch.token, launch.subject_id, "nonce:one", hostname="w", now=NOW
        )
    assert replace(launch) is NotRelaunched.MOVED_ON
    assert read(launch.token).state is LaunchState.CLAIMED


def test_a_task_that_is_gone_is_left_alone():
    launch = submitted_task(subject_id=str(uuid4()))
    assert replace(launch) is NotRelaunched.MOVED_ON


def test_a_callback_is_launched_again_unless_another_launch_may_run_it():
    launch = submitted_callback()
    new, number = replace(launch, limit=1)
    assert (number, new.kind, new.subject_id) == (1, LaunchKind.CALLBACK, launch.subject_id)
    assert replace(new, limit=1) is NotRelaunched.SPENT

    other = submitted_callback(launch.subject_id)
    assert replace(new) is NotRelaunched.SERVED
    assert replace(other) is NotRelaunched.SERVED


def test_a_callback_that_was_ever_claimed_is_never_launched_again():
    claimed = submitted_callback(state=LaunchState.LOST, claimant="nonce:one")
    assert replace(submitted_callback(claimed.subject_id)) is NotRelaunched.SERVED


@pytest.mark.needs("postgres")
def test_a_relaunch_waits_for_a_claim_that_is_not_committed_yet(airflow_database):
    if airflow_database != "postgres":
        pytest.skip("row locks need PostgreSQL as the metadata database")
    launch = submitted_task()
    with ThreadPoolExecutor(1) as pool, settings.NonScopedSession() as session:
        ti = session.get(TaskInstance, UUID(launch.subject_id), with_for_update=True)
        pending = pool.submit(replace, launch)
        assert claims.claim_task(
            session.connection(), launch.token, launch.subject_id, "nonce:one", hostname="w", now=NOW
        )
        ti.state = "running"
        session.flush()
        assert not pending.done()
        session.commit()
        assert pending.result(timeout=60) is NotRelaunched.MOVED_ON
    assert row_of(launch)[:2] == ("running", launch.token)
