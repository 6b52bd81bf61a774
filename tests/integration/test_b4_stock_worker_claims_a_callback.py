# SPDX-License-Identifier: Apache-2.0
"""B4: an upgrade in progress, on Airflow 3.4: a worker without the guard claims a callback and runs it.

It makes Airflow's own call, which the fence takes for a claim without a nonce, and it reports no result: what
Celery stores is all that is ever told. Right: SUCCESS, and not "outcome unknown" once the workers are asked.
"""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Observation
from dispatcher.domain.launch import claimant_from_process
from dispatcher.domain.lifecycle import LaunchState
from tests.support import callback_dispatching as on
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")

STOCK = claimant_from_process("", "9c5a9f3c-2f0b-4a55-9a4b-1f2f3a0c8f11", 0)
"""As the fence names a call that tells nothing of its process."""


@pytest.fixture
def executor():
    return run.started_executor()


@pytest.fixture
def claimed(executor):
    """A callback that such a worker has claimed: its UUID and its token."""
    callback_id, token = on.sent_callback(executor)
    assert on.claim(callback_id, token, STOCK)
    return callback_id, token


@pytest.mark.parametrize("fence", ["presented", "required"])
def test_the_success_that_it_stores_counts(monkeypatch, fence):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__FENCE", fence)
    executor = run.started_executor()
    callback_id, token = on.sent_callback(executor)
    assert on.claim(callback_id, token, STOCK)
    executor.celery.end(Observation(token, ok=True, anonymous=True))

    told = on.turn(executor)
    assert [event for _, event in told] == [("success", None)]
    assert run.launch_of(token).state is LaunchState.SUCCEEDED
    assert executor.slots_occupied == 0

    on.hear(told)
    on.turn(executor, 2)
    assert on.settled(callback_id)


def test_a_failure_may_be_that_of_a_delivery_that_was_refused(executor, claimed):
    _, token = claimed
    executor.celery.end(Observation(token, ok=False, reason="409 Conflict", anonymous=True))

    assert on.turn(executor, 2) == []
    assert run.launch_of(token).state is LaunchState.CLAIMED


def test_a_success_that_names_another_is_not_its_own(executor, claimed):
    _, token = claimed
    executor.celery.end(Observation(token, ok=True, claimant="nonce:another"))

    assert on.turn(executor, 2) == []
    assert run.launch_of(token).state is LaunchState.CLAIMED
