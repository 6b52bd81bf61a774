# SPDX-License-Identifier: Apache-2.0
"""What the scheduler itself says through ``change_state`` and ``fail`` (rule 15)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")


def test_a_heartbeat_that_timed_out_fails_the_launch_and_stops_its_artefact():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    run.claim(token)
    run.set_task(token, last_heartbeat_at=rows.utcnow() - timedelta(hours=1))
    (key,) = executor.running

    executor.change_state(key, "failed", remove_running=True)
    assert executor.slots_occupied == 0, "the slot is free at once"
    assert [state for state, _ in executor.get_event_buffer().values()] == ["failed"]

    run.set_task(token, state="up_for_retry")
    run.loop(executor)
    run.loop(executor)
    assert run.launch_of(token).state is LaunchState.FAILED
    assert run.launch_of(token).settled_at is not None
    assert executor.celery.revoked == {token}


def test_what_it_says_of_a_task_that_is_already_over_is_not_repeated():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    (key,) = executor.running
    run.set_task(token, state="failed")

    executor.fail(key)

    assert run.loop(executor) == {}
    assert executor.slots_occupied == 0


def test_a_key_without_a_launch_passes_through():
    from airflow.models.taskinstancekey import TaskInstanceKey

    executor = run.started_executor()
    key = TaskInstanceKey("dag", "task", "run", 1, -1)

    executor.fail(key, "gone")

    assert executor.get_event_buffer() == {key: ("failed", "gone")}
