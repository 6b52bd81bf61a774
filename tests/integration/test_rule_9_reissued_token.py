# SPDX-License-Identifier: Apache-2.0
"""Rule 9: the token that answers a claim carries the launch token, so that stock workers stay fenced."""

from __future__ import annotations

import jwt
import pytest
from airflow.configuration import conf

from tests.support.fence_calls import (
    LATER_CALLS,
    assert_refused,
    guarded,
    queued_launch,
    requeue,
    stock,
)
from tests.support.tokens import sign_token

REFRESHED = "Refreshed-API-Token"


def claims_of(token):
    return jwt.decode(token, options={"verify_signature": False})


@pytest.fixture
def launch(db_session):
    return queued_launch(db_session)


@pytest.mark.parametrize("kind", [guarded, stock])
def test_it_is_added_to_airflows_own_claims(execution_client, launch, kind):
    answer = kind(execution_client, launch).run()

    claims = claims_of(answer.headers[REFRESHED])
    assert claims["launch_token"] == launch.token
    assert claims["sub"] == launch.subject_id
    assert claims["scope"] == "execution"
    assert claims["exp"] - claims["iat"] == conf.getint("execution_api", "jwt_expiration_time")


def test_it_is_airflows_own_token_without_one(db_session, execution_client, launch):
    answer = stock(execution_client, launch).but(claim=None).run()

    assert "launch_token" not in claims_of(answer.headers[REFRESHED])


def test_the_claims_are_those_of_airflow_and_no_others(execution_client, db_session):
    plain = queued_launch(db_session, run_id="plain")
    fenced = queued_launch(db_session, run_id="fenced")
    airflows = claims_of(stock(execution_client, plain).but(claim=None).run().headers[REFRESHED])
    ours = claims_of(stock(execution_client, fenced).run().headers[REFRESHED])

    assert ours.keys() == airflows.keys() | {"launch_token"}
    assert {key: ours[key] for key in ("iss", "aud", "scope") if key in ours} == {
        key: airflows[key] for key in ("iss", "aud", "scope") if key in airflows
    }


@pytest.mark.parametrize("call", LATER_CALLS)
def test_it_is_refused_once_the_task_is_queued_anew(db_session, execution_client, launch, call):
    worker = stock(execution_client, launch)
    reissued = worker.run().headers[REFRESHED]
    worker = worker.but(claim=None, jwt=reissued)
    assert worker.heartbeat().status_code == 204
    requeue(db_session, launch.subject_id)

    assert_refused(getattr(worker, call)(), "launch_superseded")


def test_airflow_keeps_it_when_it_reissues(execution_client, launch):
    worker = stock(execution_client, launch)
    worker.run()
    nearly_over = sign_token(launch.subject_id, "execution", launch.token, valid_for=20)

    answer = worker.but(claim=None, jwt=nearly_over).heartbeat()

    assert claims_of(answer.headers[REFRESHED])["launch_token"] == launch.token


def test_a_refused_claim_gets_no_token(execution_client, launch):
    guarded(execution_client, launch).run()

    answer = guarded(execution_client, launch).run()

    assert answer.status_code == 409
    assert REFRESHED not in answer.headers
