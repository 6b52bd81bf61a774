# SPDX-License-Identifier: Apache-2.0
"""B10: a late success of a rescheduled sensor's earlier launch arrives while the task is SCHEDULED again."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


@pytest.mark.parametrize("state", ["up_for_reschedule", "scheduled"])
def test_it_is_not_reported(state):
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    run.claim(token, "nonce:sensor")
    run.set_task(token, state=state)
    executor.celery.end(Observation(token, ok=True, claimant="nonce:sensor"))

    assert run.loop(executor) == {}
    assert run.loop(executor) == {}
    assert run.launch_of(token).state is LaunchState.SUCCEEDED
    assert executor.slots_occupied == 0
