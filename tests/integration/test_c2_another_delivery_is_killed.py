# SPDX-License-Identifier: Apache-2.0
"""C2: what another delivery of the message came to is not what the launch came to."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")

SUCCEEDED, FAILED = LaunchState.SUCCEEDED, LaunchState.FAILED


@pytest.mark.parametrize(
    ("task", "launch"),
    [("success", SUCCEEDED), ("deferred", SUCCEEDED), ("up_for_retry", SUCCEEDED), ("failed", FAILED)],
)
@pytest.mark.parametrize("killed", [True, False])
def test_the_launch_ends_as_its_task_tells(task, launch, killed):
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    assert run.claim(token)
    run.set_task(token, state=task)
    reason = "signal 9 (SIGKILL)" if killed else None
    executor.celery.end(Observation(token, ok=not killed, reason=reason, claimant="nonce:other/"))
    for _ in range(2):
        assert run.loop(executor) == {}
    assert executor.slots_occupied == 0
    ended = run.launch_of(token)
    assert (ended.state, ended.settled_at is None) == (launch, False)
    assert "SIGKILL" not in (ended.end_reason or "")


def test_a_task_that_runs_is_left_alone():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    assert run.claim(token)
    executor.celery.end(Observation(token, ok=False, reason="signal 9 (SIGKILL)", claimant="nonce:other/"))
    assert run.loop(executor) == {}
    assert run.launch_of(token).state is LaunchState.CLAIMED
