# SPDX-License-Identifier: Apache-2.0
"""A9: the pod of a callback is evicted before it starts.

Right: launched again ``callback_relaunches`` times; never again once claimed. Nobody but the executor gives
up a callback whose pod does not start.
"""

from __future__ import annotations

import pytest
from airflow.models.callback import Callback
from airflow.utils.session import create_session
from sqlalchemy import update

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger import claims
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support import rows
from tests.support.kubernetes_field import container_status

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


@pytest.fixture(autouse=True)
def _in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


def queue(executor):
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(executor, callback_id)
    return str(callback_id)


def evict(field, executor, token):
    name = executor.pod_of(token)
    field.kubelet.set_status(name, phase="Failed", reason="Evicted", message="low on disk")
    return name


def launched_again(executor, callback_id):
    """Return the token of the launch that replaced the first, once it has."""
    executor.drive(lambda: len(on.launches_of(callback_id)) == 2, "it is launched again")
    return on.current_token(callback_id)


def test_it_is_launched_again_and_then_failed_with_the_reason(field):
    executor = on.started_executor(field)
    callback_id = queue(executor)
    first_pod = evict(field, executor, on.current_token(callback_id))
    second = launched_again(executor, callback_id)
    second_pod = executor.pod_of(second)
    executor.drive(lambda: [pod.metadata.name for pod in field.kubelet.pods()] == [second_pod], "it goes")
    assert first_pod != second_pod
    assert executor.told == []

    evict(field, executor, second)
    executor.drive(lambda: executor.told, "Airflow is told")
    key, state, info = executor.told[0]
    assert (str(key.id), state) == (callback_id, "failed")
    assert info == (
        "the callback's worker ended without having been claimed: Evicted: low on disk; "
        "2 launches in a row did not start"
    )
    launches = on.launches_of(callback_id)
    assert [one.state for one in launches] == [LaunchState.SUPERSEDED, LaunchState.FAILED]


def test_it_is_never_launched_again_once_claimed(field):
    executor = on.started_executor(field)
    callback_id = queue(executor)
    token = on.current_token(callback_id)
    executor.pod_of(token)
    (pod,) = field.kubelet.pods(token)
    with create_session(scoped=False) as session:
        assert claims.claim_callback(
            session.connection(),
            token,
            callback_id,
            f"nonce:{pod.metadata.uid}/start",
            hostname="pod",
            now=rows.utcnow(),
        )
    evict(field, executor, token)
    executor.drive(lambda: executor.told, "Airflow is told")
    assert executor.told[0][1] == "failed"
    assert [one.state for one in on.launches_of(callback_id)] == [LaunchState.FAILED]


def test_fault_81_a_callback_that_does_not_start_in_time_is_launched_again_and_then_failed(field):
    executor = on.started_executor(field, settings={"callback_queued_timeout": 0.1})
    callback_id = queue(executor)
    first = on.current_token(callback_id)
    waiting = container_status(waiting={"reason": "ImagePullBackOff", "message": "no such tag"})
    field.kubelet.set_status(executor.pod_of(first), phase="Pending", containerStatuses=[waiting])
    second = launched_again(executor, callback_id)
    executor.drive(lambda: executor.told, "Airflow is told")
    assert executor.told[0][1] == "failed"
    assert "the pod did not start within 0.1 s" in executor.told[0][2]
    for token in (first, second):
        assert "did not start within 0.1 s" in run.launch_of(token).end_reason
    with create_session(scoped=False) as session:
        session.execute(update(Callback).values(state="failed"))
    executor.drive(lambda: field.kubelet.pods() == [], "no pod stays")
