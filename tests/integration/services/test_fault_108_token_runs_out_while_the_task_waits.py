# SPDX-License-Identifier: Apache-2.0
"""Known fault 108: a token runs out while the message waits.

Right: the claim is not accepted, and the task is launched again with a fresh token, without using a retry.
"""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from tests.support import guarded_dag
from tests.support import service_dispatching as run
from tests.support.dispatching import launch_of, loop, queue_task, started_executor
from tests.support.tokens import sign_token

WAITED = "launch 1 of task 2 waited for longer than its workload token is valid; nothing was run"


@pytest.mark.needs("redis")
@pytest.mark.timeout(300)
def test_fault_108_it_starts_with_a_fresh_token(executor, airflow_home, broker, worker):
    run.place_dag(airflow_home, guarded_dag, "guarded", "succeed")
    first = queue_task(executor, dag_id="guarded", task_id="succeed", queue=run.PARKED)
    assert loop(executor) == {}
    subject_id = launch_of(first).subject_id
    message = run.HeldMessage(broker, first)
    message.replace_jwt(sign_token(subject_id, launch_token=first, valid_for=-3600))
    message.deliver()

    told = run.drive(executor, lambda: len(run.launches_of(subject_id)) == 2, "it is launched again")
    _, second = run.launches_of(subject_id)
    run.drive(executor, lambda: run.is_waiting(broker, second.token), "it is sent again")
    run.HeldMessage(broker, second.token).deliver()
    told += run.drive_to_the_end(executor, second.token)

    instance = run.task_instance(subject_id)
    assert (instance.state, instance.try_number) == ("success", 1)
    assert told == [], "no failure was reported"
    assert worker.take_marks() == ["succeed"]
    assert launch_of(first).state is LaunchState.SUPERSEDED
    assert executor.slots_occupied == 0


def test_fault_108_a_token_that_always_runs_out_ends_with_the_reason(airflow_db, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__TASK_RELAUNCHES", "1")
    executor = started_executor()
    token = queue_task(executor)
    loop(executor)
    executor.celery.end(Observation(token, ok=False, reason=WAITED, by_infrastructure=True, anonymous=True))
    assert loop(executor) == {}
    loop(executor)
    (_, second) = executor.celery.sends

    executor.celery.end(Observation(second, ok=False, reason=WAITED, by_infrastructure=True, anonymous=True))
    ((state, reason),) = loop(executor).values()
    assert state == "failed"
    assert "workload token" in reason
