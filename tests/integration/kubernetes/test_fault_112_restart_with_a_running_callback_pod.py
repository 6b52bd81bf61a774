# SPDX-License-Identifier: Apache-2.0
"""Known fault 112: a callback's pod runs, and each scheduler that starts fails over it."""

from __future__ import annotations

import pytest
from airflow.utils.session import create_session
from airflow.utils.state import CallbackState

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support import rows
from tests.support.callback_calls import callback_row, callback_worker

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


@pytest.fixture
def before(field, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")
    return on.started_executor(field)


def start_callback(executor, client):
    """Queue a callback and let its pod start and claim it; return the launch and the worker in it."""
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(executor, callback_id)
    (launch,) = on.launches_of(str(callback_id))
    name = executor.pod_of(launch.token)
    executor.field.kubelet.set_status(name, phase="Running")
    (pod,) = executor.field.kubelet.pods(launch.token)
    worker = callback_worker(client, launch).but(claimant=f"{pod.metadata.uid}/1")
    assert worker.run().status_code == 204
    return launch, worker


def test_fault_112_running_callbacks_survive_two_restarts(before, field, execution_client, db_session):
    good, worker = start_callback(before, execution_client)
    bad, _ = start_callback(before, execution_client)
    on.crash(before)
    between = on.started_executor(field)
    between.drive(lambda: between.slots_occupied == 2, "both are taken up")
    on.crash(between)

    after = on.started_executor(field)
    after.drive(lambda: after.slots_occupied == 2, "both are taken up again")
    assert between.told == after.told == []
    # One reports and ends; the other one is killed before it can.
    assert worker.report("success").status_code == 204
    field.kubelet.end(field.kubelet.name_of(good.token), 0)
    field.kubelet.end(field.kubelet.name_of(bad.token), 137, reason="OOMKilled")

    def heed() -> bool:
        with create_session(scoped=False) as session:
            for key, state, info in after.told:
                callback = callback_row(session, key.id)
                callback.state, callback.output = state, info
        return on.settled(good.token, bad.token)

    after.drive(heed, "both have settled")
    assert [one.state for one in on.launches(good.token, bad.token)] == [
        LaunchState.SUCCEEDED,
        LaunchState.FAILED,
    ]
    assert callback_row(db_session, good.subject_id).state == CallbackState.SUCCESS
    failed = callback_row(db_session, bad.subject_id)
    assert failed.state == CallbackState.FAILED
    assert "OOMKilled" in failed.output
    assert after.slots_occupied == 0
    assert len(on.launches_of(good.subject_id)) == len(on.launches_of(bad.subject_id)) == 1
