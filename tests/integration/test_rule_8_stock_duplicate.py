# SPDX-License-Identifier: Apache-2.0
"""Rule 8: a stock worker's duplicate gets Airflow's own answer, which stock workers take for harmless."""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support.fence_calls import (
    assert_refused,
    guarded,
    launch_row,
    queued_launch,
    reason,
    stock,
    task_instance,
)


@pytest.fixture
def launch(db_session):
    return queued_launch(db_session)


@pytest.mark.parametrize("winner", [guarded, stock])
def test_a_stock_duplicate_is_already_running(db_session, execution_client, launch, winner):
    assert winner(execution_client, launch).run().status_code == 200

    answer = stock(execution_client, launch).but(pid=8).run()

    assert answer.status_code == 409
    assert reason(answer) == "invalid_state"
    assert answer.json()["detail"]["previous_state"] == "running"
    assert task_instance(db_session, launch.subject_id).pid == 7


@pytest.mark.parametrize("winner", [guarded, stock])
def test_a_guarded_duplicate_is_consumed(db_session, execution_client, launch, winner):
    assert winner(execution_client, launch).run().status_code == 200

    assert_refused(guarded(execution_client, launch).run(), "launch_consumed")

    assert task_instance(db_session, launch.subject_id).state == "running"


@pytest.mark.parametrize("state", ["success", "failed", "deferred", "up_for_retry", "scheduled"])
def test_a_stock_duplicate_of_a_launch_that_ended_is_consumed(db_session, execution_client, launch, state):
    assert stock(execution_client, launch).run().status_code == 200
    task_instance(db_session, launch.subject_id).state = state
    db_session.commit()

    assert_refused(stock(execution_client, launch).run(), "launch_consumed")

    assert task_instance(db_session, launch.subject_id).state == state


def test_a_task_that_started_without_the_fence(db_session, execution_client, launch):
    """Through an API server without the plugin: nothing holds the claim, and Airflow's answer is right."""
    row = task_instance(db_session, launch.subject_id)
    row.state, row.hostname, row.unixname, row.pid = "running", "worker", "airflow", 7
    db_session.commit()
    worker = guarded(execution_client, launch)

    assert worker.run().status_code == 200, "the same process asks again"
    assert reason(worker.but(pid=8).run()) == "invalid_state"
    assert worker.heartbeat().status_code == 204
    assert launch_row(db_session, launch.token).state is LaunchState.SUBMITTED


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("scheduled", "launch_superseded"),
        (None, "launch_superseded"),
        ("restarting", "launch_superseded"),
        ("success", "launch_revoked"),
        ("failed", "launch_revoked"),
    ],
)
@pytest.mark.parametrize("kind", [guarded, stock])
def test_only_a_queued_task_is_claimed(db_session, execution_client, launch, kind, state, expected):
    """RESTARTING above all: Airflow alone would start it (rule 7)."""
    task_instance(db_session, launch.subject_id).state = state
    db_session.commit()

    assert_refused(kind(execution_client, launch).run(), expected)

    assert task_instance(db_session, launch.subject_id).state == state
    assert launch_row(db_session, launch.token) == launch


@pytest.mark.parametrize("state", ["succeeded", "failed", "superseded", "revoked", "dropped", "lost"])
def test_an_ended_launch_is_not_claimed(db_session, execution_client, launch, state):
    """K9, C6: what ended cannot start, even if the task instance still carries its token."""
    from sqlalchemy import update

    from dispatcher.ledger.models import LaunchRow

    db_session.execute(update(LaunchRow).where(LaunchRow.token == launch.token).values(state=state))
    db_session.commit()

    expected = "launch_revoked" if state == "revoked" else "launch_superseded"
    assert_refused(guarded(execution_client, launch).run(), expected)
    assert task_instance(db_session, launch.subject_id).state == "queued"


def test_a_token_without_a_ledger_row_is_judged_by_equality(db_session, execution_client):
    from tests.support.fence_calls import Worker
    from tests.support.rows import make_task_instance

    instance = make_task_instance(db_session)
    db_session.commit()
    worker = Worker(client=execution_client, subject_id=instance.id, header=instance.external_executor_id)
    unknown = worker.but(header="00000000-0000-4000-8000-000000000000")

    assert_refused(unknown.run(), "launch_superseded")
    assert worker.run().status_code == 200
    assert_refused(unknown.heartbeat(), "launch_superseded")
    assert_refused(unknown.report(), "launch_superseded")
    assert worker.heartbeat().status_code == 204


def test_a_call_without_a_token_is_judged_by_state_alone(db_session, execution_client, launch):
    """B4: an upgrade in progress."""
    worker = stock(execution_client, launch).but(claim=None)

    assert worker.run().status_code == 200
    assert worker.heartbeat().status_code == 204
    assert worker.report().status_code == 204
    assert launch_row(db_session, launch.token) == launch
