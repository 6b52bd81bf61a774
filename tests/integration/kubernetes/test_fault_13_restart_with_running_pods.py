# SPDX-License-Identifier: Apache-2.0
"""Known fault 13: after a restart, running tasks of one half are taken for orphans and reset."""

from __future__ import annotations

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support import rows

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


def task_instances() -> dict[str, tuple]:
    columns = (TaskInstance.task_id, TaskInstance.id, TaskInstance.state, TaskInstance.try_number)
    with create_session(scoped=False) as session:
        return {task_id: tuple(rest) for task_id, *rest in session.execute(select(*columns))}


def test_fault_13_only_what_neither_half_knows_is_reset(field):
    before = on.started_executor(field)
    tokens = {name: on.launch_pod(before, task_id=name) for name in ("pod", "pending")}
    on.start_and_claim(field, tokens["pod"])
    for name in ("message", "waiting"):
        tokens[name] = run.queue_task(before, task_id=name)
    run.loop(before)
    assert run.claim(tokens["message"])
    with create_session(scoped=False) as session:
        # Queued by an executor without a ledger, before this one was installed.
        rows.make_task_instance(session, task_id="unknown", queued_by_job_id=before.job_id)
    known = task_instances()
    on.crash(before)

    after = on.started_executor(field)
    assert on.orphan_check(after) == 1
    after.drive(lambda: after.slots_occupied == len(tokens), "all of them are taken up")
    found = task_instances()
    assert found["unknown"][1] is None
    assert {name: found[name] for name in tokens} == {name: known[name] for name in tokens}
    states = [launch.state for launch in on.launches(*tokens.values())]
    assert states == [
        LaunchState.CLAIMED,
        LaunchState.SUBMITTED,
        LaunchState.CLAIMED,
        LaunchState.SUBMITTED,
    ]
    assert after.told == []
    assert {pod.metadata.name[-36:] for pod in field.kubelet.pods()} == {tokens["pod"], tokens["pending"]}
