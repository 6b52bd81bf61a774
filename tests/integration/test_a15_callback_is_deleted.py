# SPDX-License-Identifier: Apache-2.0
"""A15: the run or the callback row is deleted meanwhile. Right: a warning; slot freed; artefact removed."""

from __future__ import annotations

import pytest
from airflow.models.callback import Callback
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import delete

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from tests.support import callback_dispatching as on
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")

BACKENDS = ["celery", "kubernetes"]


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", request.param)
    return request.param


@pytest.fixture
def executor(backend):
    return run.started_executor()


def delete_row(callback_id):
    with create_session(scoped=False) as session:
        session.execute(delete(Callback).where(Callback.id == callback_id))


def assert_stopped(executor, backend, token, state):
    """The slot is free, the artefact was stopped, and nothing is left to be done."""
    assert executor.slots_occupied == 0
    launch = run.launch_of(token)
    assert launch.state is state
    assert launch.settled_at is not None
    assert token in getattr(executor, backend).revoked
    assert token not in getattr(executor, backend).artefacts


def warnings(caplog, token):
    return [one for one in caplog.records if token in one.getMessage() and "was deleted" in one.getMessage()]


def test_before_it_is_sent(executor, backend):
    callback_id = on.new_callback()
    run.queue_callback(executor, callback_id)
    token = on.token_of(callback_id)
    delete_row(callback_id)

    assert on.turn(executor, 3) == []
    assert getattr(executor, backend).sends == []
    assert executor.slots_occupied == 0
    assert run.launch_of(token).state is LaunchState.DROPPED
    assert run.launch_of(token).settled_at is not None


def test_before_it_is_claimed(executor, backend, caplog):
    callback_id, token = on.sent_callback(executor)
    delete_row(callback_id)

    assert on.sweep(executor, 3) == []
    assert_stopped(executor, backend, token, LaunchState.DROPPED)
    assert len(warnings(caplog, token)) == 1


def test_while_it_runs(executor, backend, caplog):
    callback_id, token = on.sent_callback(executor)
    assert on.claim(callback_id, token)
    delete_row(callback_id)

    assert on.sweep(executor, 3) == []
    assert_stopped(executor, backend, token, LaunchState.REVOKED)
    assert len(warnings(caplog, token)) == 1
    # Its body may have gone on all the same.
    getattr(executor, backend).end(Observation(token, ok=True))
    assert on.turn(executor, 2) == []


def test_its_run_is_deleted_before_it_is_sent_again(executor, backend):
    """A scheduler that takes it over cannot make its workload any more."""
    callback_id, token = on.sent_callback(executor)
    heir = run.started_executor()
    with create_session(scoped=False) as session:
        session.execute(delete(DagRun))
        from airflow.jobs.job import Job

        session.get(Job, executor.job_id).state = "failed"

    heir.dispatcher.adopt_soon()
    on.sweep(heir, 2)
    assert getattr(heir, backend).sends == []
    assert on.claim(callback_id, token), "what was sent may still run"
    on.report(callback_id, token)
    on.turn(heir, 2)
    assert heir.slots_occupied == 0
    assert on.settled(callback_id)
