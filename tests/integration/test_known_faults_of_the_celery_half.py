# SPDX-License-Identifier: Apache-2.0
"""Known faults of executors for Celery that have no scenario of their own, on the executor in memory."""

from __future__ import annotations

import json
from datetime import timedelta

import jwt
import pytest
from kubernetes.client import V1Container, V1Pod, V1PodSpec

from dispatcher.dispatch import search
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import rows
from tests.support import service_dispatching as services
from workers.payload import read_workload

pytestmark = pytest.mark.usefixtures("airflow_db")


def test_fault_22_a_key_of_a_crashed_worker_does_not_block_the_next_attempt():
    """The worker died in the task; it is cleared and queued again, same try, before anybody noticed."""
    executor = run.started_executor()
    dead = run.queue_task(executor)
    run.loop(executor)
    assert run.claim(dead)
    run.loop(executor)
    (key,) = executor.running

    newer = services.queue_again(executor, run.launch_of(dead).subject_id)
    run.loop(executor)

    assert executor.celery.sends == [dead, newer], "it is sent within one loop"
    assert run.launch_of(dead).state is LaunchState.SUPERSEDED
    assert executor.running == {key}
    assert executor.slots_occupied == 1


def test_fault_97_a_pod_override_does_not_go_to_celery(monkeypatch):
    """A rule sends the task to Celery though it has one: its message has no trace of it."""
    rules = [{"match": {"has_pod_override": True}, "backend": "celery", "queue": "default"}]
    monkeypatch.setenv("AIRFLOW__DISPATCHER__ROUTES", json.dumps(rules))
    override = V1Pod(spec=V1PodSpec(containers=[V1Container(name="base", image="marked-image")]))
    executor = run.started_executor()

    token = run.queue_task(executor, executor_config={"pod_override": override})
    run.loop(executor)

    payload = executor.celery.artefacts[token].payload
    assert "marked-image" not in payload
    assert str(read_workload(payload).ti.id) == run.launch_of(token).subject_id


def expiry(payload):
    return jwt.decode(json.loads(payload)["token"], options={"verify_signature": False})["exp"]


def test_fault_108_a_token_lives_as_long_as_its_task_may_wait_and_is_new_in_each_send(monkeypatch):
    """Signed at the send, not at the issue; what is sent again does not carry the old one."""
    monkeypatch.setenv("AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT", "600")
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    first = executor.celery.artefacts[token].payload
    assert expiry(first) >= rows.utcnow().timestamp() + 2 * 600 - 60

    run.sent_long_ago(executor, token, search.PATIENCE + timedelta(seconds=1))
    executor.dispatcher.sweep_soon()
    executor.celery.lost = {token}
    run.loop(executor)
    run.loop(executor)

    again = executor.celery.artefacts[token].payload
    assert json.loads(again)["token"] != json.loads(first)["token"]
    assert expiry(again) >= expiry(first)
