# SPDX-License-Identifier: Apache-2.0
"""A callback runs longer than its workload JWT is good for: its result counts all the same."""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.fence.callbacks import RESULT_GRACE
from tests.support.callback_calls import callback_row, callback_worker, queued_callback_launch
from tests.support.fence_calls import assert_refused, launch_row
from tests.support.tokens import sign_token


@pytest.fixture
def launch(db_session):
    return queued_callback_launch(db_session)


@pytest.fixture
def worker(execution_client, launch):
    return callback_worker(execution_client, launch)


def expired(launch, seconds=60):
    """Return the workload JWT of a launch, some time after it has expired."""
    return sign_token(launch.subject_id, launch_token=launch.token, valid_for=-seconds)


def test_its_result_is_taken(db_session, worker, launch):
    assert worker.run().status_code == 204

    answer = worker.but(jwt=expired(launch)).report("failed", "the pager is unreachable")

    assert answer.status_code == 204, answer.text
    row = callback_row(db_session, launch.subject_id)
    assert (row.state, row.output) == ("failed", "the pager is unreachable")
    assert launch_row(db_session, launch.token).state == LaunchState.FAILED


def test_its_claimant_is_let_in_again(worker, launch):
    """The claim was granted, and its answer lost."""
    assert worker.run().status_code == 204

    again = worker.but(jwt=expired(launch)).run()

    assert again.status_code == 204
    assert again.headers["Refreshed-API-Token"]


def test_it_starts_nothing(db_session, worker, launch):
    assert worker.but(jwt=expired(launch)).run().status_code == 403
    assert launch_row(db_session, launch.token).state == LaunchState.SUBMITTED

    assert worker.run().status_code == 204
    assert worker.but(jwt=expired(launch), claimant="another").run().status_code == 403
    assert worker.report().status_code == 204
    assert worker.but(jwt=expired(launch)).run().status_code == 403, "it has ended"


def test_it_is_not_good_for_ever(worker, launch):
    assert worker.run().status_code == 204
    assert worker.but(jwt=expired(launch, RESULT_GRACE + 60)).report().status_code == 403


def test_it_is_of_no_use_to_anybody_but_the_claimant(db_session, worker, launch):
    old = worker.but(jwt=expired(launch))
    assert_refused(old.report(), "launch_consumed")
    worker.run()
    assert_refused(old.but(claimant="another").report(), "launch_consumed")
    assert_refused(old.but(claimant=None).report(), "launch_consumed")
    assert callback_row(db_session, launch.subject_id).state == "running"
