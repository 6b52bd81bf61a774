# SPDX-License-Identifier: Apache-2.0
"""Rule 11: ``[dispatcher] fence`` is ``required``: launches of ours start with their token only."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.routing import Mount

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.fence.middleware import FenceMiddleware
from tests.support.fence_calls import (
    LATER_CALLS,
    Worker,
    assert_refused,
    guarded,
    launch_row,
    queued_launch,
    reason,
    stock,
    task_instance,
)
from tests.support.rows import make_task_instance

SETTING = "AIRFLOW__DISPATCHER__FENCE"


@pytest.fixture
def client(execution_client, own_client, monkeypatch):
    """Return a client of Airflow's execution API behind a fence in mode ``required``."""
    monkeypatch.setenv(SETTING, "required")
    app = FastAPI()
    for route in execution_client.app.routes:
        if isinstance(route, Mount) and route.path in {"/execution", "/dispatcher"}:
            app.mount(route.path, route.app)
    app.add_middleware(FenceMiddleware)
    return own_client(app)


@pytest.fixture
def launch(db_session):
    return queued_launch(db_session)


def bare(worker):
    """Return the same worker without any launch token."""
    return worker.but(header=None, claimant=None, claim=None)


def test_run_without_a_token_is_refused(db_session, client, launch):
    assert_refused(bare(stock(client, launch)).run(), "launch_required")

    assert task_instance(db_session, launch.subject_id).state == "queued"
    assert launch_row(db_session, launch.token) == launch


@pytest.mark.parametrize("kind", [guarded, stock])
def test_run_with_it_is_not(db_session, client, launch, kind):
    assert kind(client, launch).run().status_code == 200
    assert launch_row(db_session, launch.token).state is LaunchState.CLAIMED


@pytest.mark.parametrize("call", LATER_CALLS)
def test_a_guarded_claim_takes_later_calls_with_its_token_only(client, launch, call):
    worker = guarded(client, launch)
    assert worker.run().status_code == 200

    assert_refused(getattr(bare(worker), call)(), "launch_required")
    assert getattr(worker, call)().is_success


@pytest.mark.parametrize("call", LATER_CALLS)
def test_a_stock_claim_does_not(client, launch, call):
    """Its worker may have claimed through an API server that does not add the token to the JWT."""
    worker = stock(client, launch)
    assert worker.run().status_code == 200

    assert getattr(bare(worker), call)().is_success


@pytest.mark.parametrize("token", [None, "00000000-0000-4000-8000-000000000000", "not one of ours"])
def test_tasks_of_other_executors_are_left_alone(db_session, client, token):
    instance = make_task_instance(db_session, token=token)
    db_session.commit()
    worker = Worker(client=client, subject_id=instance.id)

    assert worker.run().status_code == 200
    for call in LATER_CALLS:
        answer = getattr(worker, call)()
        assert answer.is_success, (call, answer.text)


def test_a_claimed_launch_asked_for_without_a_token(client, launch):
    assert guarded(client, launch).run().status_code == 200

    answer = bare(stock(client, launch)).but(pid=8).run()

    assert (answer.status_code, reason(answer)) == (409, "invalid_state")


@pytest.mark.parametrize("call", ["run", *LATER_CALLS])
def test_a_task_instance_that_is_gone_is_airflows_to_answer(client, call):
    worker = Worker(client=client, subject_id="00000000-0000-4000-8000-000000000000")

    assert getattr(worker, call)().status_code == 404


def test_the_probe_tells_the_mode(client):
    assert client.get("/dispatcher/health").json()["mode"] == "required"
