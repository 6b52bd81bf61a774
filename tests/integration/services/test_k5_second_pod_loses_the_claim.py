# SPDX-License-Identifier: Apache-2.0
"""K5: several pods of one task instance exist, and only one of them wins ``/run``.

Right: each loser ends cleanly, with exit code 0, and the healthy attempt is untouched: it goes on, it
succeeds, and no event says otherwise. Today a loser's exit code fails the healthy attempt, and a late pod
may start what has moved on (known fault 67).
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import BackendName, LaunchState
from tests.support import gated_dag
from tests.support import service_dispatching as run
from tests.support.backend_harness import eventually
from tests.support.dispatching import launch_of, loop, queue_task

pytestmark = [pytest.mark.needs("redis", "node"), pytest.mark.timeout(400)]

TURNS = 5
"""Turns of the scheduler's loop after which what was observed has had every effect."""


@pytest.fixture
def dag(airflow_db, airflow_home):
    run.place_dag(airflow_home, gated_dag, "gated", "wait")


def refusal(pods, name, token):
    """Wait until a pod has ended, and return its exit code and the reason of its refusal."""
    eventually(lambda: pods.exit_code(name) is not None, f"pod {name} ends", run.END_SECONDS)
    (line,) = [one for one in pods.log_of(name).splitlines() if token in one and "refused" in one]
    return pods.exit_code(name), line.partition("(")[2].partition(")")[0]


def snapshot(subject_id):
    instance = run.task_instance(subject_id)
    return instance.state, instance.external_executor_id, instance.hostname, instance.pid, instance.start_date


def test_the_losers_end_cleanly_and_the_healthy_attempt_goes_on(dag, pods, executor):
    old = queue_task(executor, dag_id="gated", task_id="wait", queue="kubernetes")
    told = list(loop(executor).items())
    subject_id = launch_of(old).subject_id
    late_pod = pods.manifest(old)
    # As after stuck-in-queued handling: the scheduler queues the task instance again, under another token.
    new = run.queue_again(executor, subject_id)
    told += loop(executor).items()
    second_pod = pods.manifest(new)
    healthy = second_pod.metadata.name
    told += run.drive(executor, lambda: pods.marks() == ["began"], "the task runs")
    before = snapshot(subject_id)
    assert before[:2] == ("running", new)

    pods.create(second_pod, "second")
    pods.create(late_pod, "late")
    assert refusal(pods, "second", new) == (0, "launch_consumed")
    assert refusal(pods, "late", old) == (0, "launch_superseded")
    seen = executor.backends[BackendName.KUBERNETES].observe
    told += run.drive(executor, lambda: new in [one.token for one in seen()], "the loser's end is observed")
    for _ in range(TURNS):
        told += loop(executor).items()

    assert told == []
    assert snapshot(subject_id) == before
    assert launch_of(new).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1

    pods.open_gate()
    told += run.drive_to_the_end(executor, new)

    assert run.task_instance(subject_id).state == "success"
    assert (launch_of(old).state, launch_of(new).state) == (LaunchState.SUPERSEDED, LaunchState.SUCCEEDED)
    assert pods.marks() == ["began", "ended"]
    assert executor.slots_occupied == 0
    assert told == [], "the task told its own state"
    run.drive(executor, lambda: healthy not in pods.names(), "the pod is removed")
