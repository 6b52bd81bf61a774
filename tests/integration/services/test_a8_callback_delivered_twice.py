# SPDX-License-Identifier: Apache-2.0
"""A8: a callback's message is delivered twice, or its pod is created twice.

Right: the second claim is refused, and the body runs once. The end of the loser says nothing of the callback.
"""

from __future__ import annotations

import os
import signal

import pytest
from airflow.utils.session import create_session

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import BackendName, LaunchState
from dispatcher.domain.pod_claimant import claimants_of_pod
from dispatcher.ledger import claims
from tests.support import gate, guarded_callbacks, rows
from tests.support import service_dispatching as run
from tests.support.backend_harness import eventually
from tests.support.dispatching import launch_of, loop, queue_callback, started_executor

pytestmark = pytest.mark.timeout(400)

GATED = f"{gate.__name__}.pass_through"
PLAIN = f"{guarded_callbacks.__name__}.succeed"
QUEUE = "callbacks"
TURNS = 5
"""Turns of the scheduler's loop after which what was observed has had every effect."""


def refusals(log, token):
    text = "refused at the claim (launch_consumed)"
    return [line for line in log.splitlines() if token in line and text in line]


def queue_and_send(executor, airflow_home, path):
    """Queue a callback, send it, and return its UUID and its token."""
    callback_id = run.new_callback(airflow_home, path)
    queue_callback(executor, callback_id)
    assert loop(executor) == {}
    (launch,) = run.launches_of(callback_id)
    return callback_id, launch.token


def assert_succeeded(executor, callback_id, token, told):
    assert run.callback_row(callback_id).state == "success"
    assert launch_of(token).state is LaunchState.SUCCEEDED
    assert [launch.token for launch in run.launches_of(callback_id)] == [token]
    assert executor.slots_occupied == 0
    assert told == [], "the callback's worker has told its result"


@pytest.fixture
def callbacks_parked(configured):
    configured.setenv("AIRFLOW__DISPATCHER__CALLBACK_QUEUE", run.PARKED)


@pytest.mark.needs("redis")
@pytest.mark.parametrize("when", ["at once", "afterwards"])
def test_the_message_is_delivered_twice(callbacks_parked, executor, airflow_home, broker, worker, when):
    callback_id, token = queue_and_send(executor, airflow_home, PLAIN)
    message = run.HeldMessage(broker, token)
    message.deliver(QUEUE)
    if when == "afterwards":
        worker.wait_for(lambda: run.callback_row(callback_id).state == "success")

    message.deliver_again(QUEUE)
    worker.wait_for(lambda: len(refusals(worker.log(), token)) == 1)
    told = run.drive_to_the_end(executor, token)
    worker.wait_idle()

    assert_succeeded(executor, callback_id, token, told)
    assert worker.take_marks() == ["callback"]
    assert worker.state(token) == "PENDING", "the loser left no result after the winner's was removed"


@pytest.fixture
def callbacks_in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


@pytest.mark.needs("redis", "node")
def test_the_pod_is_created_twice(callbacks_in_pods, pods, executor, airflow_home):
    callback_id, token = queue_and_send(executor, airflow_home, GATED)
    manifest = pods.manifest(token)
    winner = manifest.metadata.name
    told = run.drive(executor, lambda: pods.marks() == ["began"], "the callback runs")

    pods.create(manifest, "second")
    eventually(lambda: pods.exit_code("second") is not None, "the second pod ends", run.END_SECONDS)
    assert pods.exit_code("second") == 0
    assert len(refusals(pods.log_of("second"), token)) == 1
    seen = executor.backends[BackendName.KUBERNETES].observe
    told += run.drive(executor, lambda: token in [one.token for one in seen()], "its end is observed")
    for _ in range(TURNS):
        told += loop(executor).items()
    assert run.callback_row(callback_id).state == "running"
    assert launch_of(token).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1

    pods.open_gate()
    eventually(lambda: pods.exit_code(winner) is not None, "the first pod ends", run.END_SECONDS)
    assert pods.exit_code(winner) == 0
    told += run.drive_to_the_end(executor, token)

    assert_succeeded(executor, callback_id, token, told)
    assert pods.marks() == ["began", "ended"]
    run.drive(executor, lambda: winner not in pods.names(), "the pod is removed")


def claim(callback_id, token, claimant):
    with create_session(scoped=False) as session:
        assert claims.claim_callback(
            session.connection(), token, str(callback_id), claimant, hostname="pod", now=rows.utcnow()
        )


@pytest.mark.parametrize("ok", [True, False], ids=["exit code 0", "failed"])
def test_the_end_of_a_pod_without_the_claim_says_nothing(callbacks_in_pods, airflow_db, ok):
    executor = started_executor()
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    queue_callback(executor, callback_id)
    loop(executor)
    (token,) = executor.kubernetes.artefacts
    claim(callback_id, token, claimants_of_pod("uid-of-the-winner") + "start")

    executor.kubernetes.end(Observation(token, ok=ok, claimant=claimants_of_pod("uid-of-the-loser")))
    assert loop(executor) == {}
    assert launch_of(token).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1

    executor.kubernetes.end(Observation(token, ok=ok, claimant=claimants_of_pod("uid-of-the-winner")))
    assert [state for state, _ in loop(executor).values()] == ["failed"], "it ended without a result"
    assert launch_of(token).state is LaunchState.FAILED


def claimed_callback(executor, claimant):
    """Queue a callback on Celery and claim it; return its UUID and its token."""
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    queue_callback(executor, callback_id)
    loop(executor)
    (token,) = executor.celery.artefacts
    claim(callback_id, token, claimant)
    return callback_id, token


@pytest.mark.parametrize("ok", [True, False], ids=["success", "failed"])
def test_what_a_delivery_stores_without_a_name_says_nothing_of_the_claimant(airflow_db, ok):
    """A worker without the guard ran it too, or the process of the second delivery was killed."""
    executor = started_executor()
    _, token = claimed_callback(executor, "nonce:worker.12/start")

    executor.celery.end(Observation(token, ok=ok, reason=None if ok else "signal 9", anonymous=True))
    assert loop(executor) == {}
    assert launch_of(token).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1

    executor.celery.end(Observation(token, ok=False, reason="signal 9", claimant="nonce:worker.12/"))
    assert [state for state, _ in loop(executor).values()] == ["failed"], "it ended without a result"
    assert launch_of(token).state is LaunchState.FAILED
    assert executor.slots_occupied == 0


@pytest.mark.needs("redis")
def test_the_process_that_runs_it_is_killed(executor, airflow_home, broker, worker):
    """Known by its name: of an end that may be the other delivery's, nobody could tell."""
    _, token = queue_and_send(executor, airflow_home, GATED)
    worker.wait_for(lambda: worker.take_marks() == ["began"])

    (process,) = worker.busy_processes()
    os.kill(process.pid, signal.SIGKILL)
    told = run.drive(executor, lambda: launch_of(token).state is LaunchState.FAILED, "its end is seen")

    assert [state for _, (state, _) in told] == ["failed"]
    assert "SIGKILL" in launch_of(token).end_reason
    assert executor.slots_occupied == 0
