# SPDX-License-Identifier: Apache-2.0
"""A workload that no launch can be issued for fails, whatever else is known of its subject."""

from __future__ import annotations

import uuid

import pytest
from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.backends.base import Observation
from dispatcher.compat import workload_key
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


class Undecided:
    """As an array is: neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")


def queue_undecided(executor, token):
    """Queue a task instance whose executor_config cannot be looked at; return its key and its new token."""
    with create_session(scoped=False) as session:
        instance = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == token))
        instance.state, instance.external_executor_id = "queued", str(uuid.uuid4())
        workload = ExecuteTask.make(instance)
        workload.ti.executor_config = {"pod_override": Undecided()}
        executor.queue_workload(workload, session)
        return workload_key(workload), instance.external_executor_id


def failure_of(events, key):
    assert list(events) == [key]
    state, info = events[key]
    assert state == "failed"
    assert "no launch can be issued for it: ValueError: the truth value is ambiguous" in info


def test_it_fails_once_and_takes_no_slot():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    executor.celery.end(Observation(token, ok=False, reason="killed"))
    run.loop(executor)
    run.set_task(token, state="up_for_retry")
    run.loop(executor)

    key, _ = queue_undecided(executor, token)

    assert executor.slots_occupied == 0
    failure_of(executor.get_event_buffer(), key)
    assert run.loop(executor) == {}


def test_it_fails_although_an_older_launch_of_the_task_is_still_in_memory():
    """A task that deferred is queued anew before the ending of its launch was seen."""
    executor = run.started_executor()
    old = run.queue_task(executor)
    run.loop(executor)
    assert run.claim(old)
    run.set_task(old, state="deferred")

    key, _ = queue_undecided(executor, old)

    failure_of(executor.get_event_buffer(), key)
    assert executor.slots_occupied == 0
    executor.celery.end(Observation(old, ok=True, claimant="nonce:one"))
    assert run.loop(executor) == {}, "of the older launch nothing is told: it is not the current one"
    assert run.launch_of(old).state is LaunchState.SUCCEEDED


def test_it_fails_although_an_older_launch_of_the_task_was_not_sent_yet():
    executor = run.started_executor()
    old = run.queue_task(executor)

    key, _ = queue_undecided(executor, old)

    failure_of(run.loop(executor), key)
    assert executor.celery.sends == []
    assert executor.slots_occupied == 0
