# SPDX-License-Identifier: Apache-2.0
"""B5: header and JWT differ, a token of another task, a token that is no UUID, ten kilobytes of header.

Every one is answered with 4xx; nothing changes, and nothing is told about tokens.
"""

from __future__ import annotations

import json

import httpx
import jwt
import pytest

from tests.support.fence_calls import (
    LATER_CALLS,
    assert_refused,
    guarded,
    launch_row,
    queued_launch,
    task_instance,
)
from tests.support.tokens import sign_token

OTHER = "00000000-0000-4000-8000-000000000000"
MALFORMED = {
    "no UUID": "not-a-uuid",
    "empty": "",
    "ten kilobytes": "f" * 10_240,
    "a UUID in braces": "{00000000-0000-4000-8000-00000000000}",
    "a UUID without hyphens": "0" * 32,
    "a UUID and more": OTHER + "0",
}


@pytest.fixture
def launch(db_session):
    return queued_launch(db_session)


@pytest.fixture
def worker(execution_client, launch):
    return guarded(execution_client, launch)


@pytest.fixture(autouse=True)
def _nothing_changes(db_session, launch):
    """Check, after each test, that the task instance and its launch are as they were."""
    before = task_instance(db_session, launch.subject_id)
    seen = (before.state, before.external_executor_id, before.hostname, before.last_heartbeat_at)
    yield
    after = task_instance(db_session, launch.subject_id)
    assert seen == (after.state, after.external_executor_id, after.hostname, after.last_heartbeat_at)
    assert launch_row(db_session, launch.token) == launch


@pytest.mark.parametrize("call", ["run", *LATER_CALLS])
@pytest.mark.parametrize("token", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_header(worker, launch, call, token):
    answer = getattr(worker.but(header=token), call)()

    assert_refused(answer, "launch_token_invalid", 400)
    assert launch.token not in answer.text


@pytest.mark.parametrize("token", [*MALFORMED.values(), 7, ["x"], {"a": 1}], ids=str)
def test_a_malformed_claim_in_the_jwt(worker, launch, token):
    key, rest = "k" * 64, {"sub": str(launch.subject_id), "scope": "workload"}
    forged = jwt.encode({**rest, "launch_token": token}, key, algorithm="HS512")

    answer = worker.but(header=None, jwt=forged).run()

    assert_refused(answer, "launch_token_invalid", 400)


def test_header_and_jwt_differ(worker):
    assert_refused(worker.but(claim=OTHER).run(), "launch_token_invalid", 400)
    assert_refused(worker.but(header=OTHER).run(), "launch_token_invalid", 400)


def test_the_token_of_another_task(db_session, worker, launch):
    other = queued_launch(db_session, task_id="other")

    answer = worker.but(header=other.token, claim=None).run()

    assert_refused(answer, "launch_superseded")
    assert launch.token not in answer.text
    assert task_instance(db_session, other.subject_id).state == "queued"
    assert launch_row(db_session, other.token) == other


def test_another_tasks_jwt_does_not_open_this_one(db_session, worker):
    other = queued_launch(db_session, task_id="other")

    answer = worker.but(jwt=sign_token(other.subject_id, launch_token=worker.header)).run()

    assert answer.status_code == 403


@pytest.mark.parametrize("nonce", ["", "x" * 129, "with space", "tab\tinside", "ümlaut"])
def test_a_malformed_claimant(worker, nonce):
    answer = worker.but(claimant=nonce.encode("latin-1")).run()

    assert_refused(answer, "launch_token_invalid", 400)


def test_a_host_name_that_is_too_long_for_a_claimant(worker):
    answer = worker.but(claimant=None, hostname="h" * 600).run()

    assert_refused(answer, "launch_token_invalid", 400)


def test_a_header_sent_twice(execution_client, launch):
    headers = [
        ("Authorization", f"Bearer {sign_token(launch.subject_id, launch_token=launch.token)}"),
        ("Airflow-Launch-Token", launch.token),
        ("Airflow-Launch-Token", OTHER),
    ]

    answer = execution_client.patch(
        f"/execution/task-instances/{launch.subject_id}/run", headers=headers, json={}
    )

    assert_refused(answer, "launch_token_invalid", 400)


@pytest.mark.parametrize("forged", ["", "x", "a.b.c", "e30.e30.e30", "." * 10_000])
def test_what_is_no_jwt_is_left_to_airflow(worker, forged):
    answer = worker.but(jwt=forged or " ").run()

    assert answer.status_code in {401, 403}


def test_a_jwt_of_deeply_nested_json(worker):
    import base64

    nested = base64.urlsafe_b64encode(b"[" * 40_000).decode().rstrip("=")

    assert worker.but(jwt=f"{nested}.{nested}.x").run().status_code in {401, 403}


@pytest.mark.parametrize("change", [{"hostname": None}, {"pid": "x"}, {"unixname": 7}, {"more": "x"}])
def test_a_malformed_body_is_airflows_to_refuse(worker, change):
    for one in (worker, worker.but(claimant=None)):
        answer = one.run(**change)
        assert answer.status_code == 422, answer.text


def test_a_forged_signature_reaches_no_judgement(worker, launch):
    """The claim in a JWT is read before its signature is verified; nothing comes of it."""
    claims = jwt.decode(sign_token(launch.subject_id), options={"verify_signature": False})
    forged = jwt.encode({**claims, "launch_token": launch.token}, "k" * 64, algorithm="HS512")

    assert worker.but(jwt=forged).run().status_code == 403


def test_refusals_tell_no_token(db_session, execution_client, launch):
    from tests.support.fence_calls import requeue

    old = guarded(execution_client, launch)
    instance = task_instance(db_session, launch.subject_id)
    before = instance.external_executor_id
    newer = requeue(db_session, launch.subject_id)

    answer = old.run()

    assert newer.token not in json.dumps(dict(answer.headers)) + answer.text
    instance = task_instance(db_session, launch.subject_id)
    instance.external_executor_id = before
    db_session.commit()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_server_logs_no_jwt(db_session, api_server, launch):
    """Known fault 53, on the API server: whatever it says about a refusal, no token is in it."""
    server = api_server(workers=2)
    signed = sign_token(launch.subject_id, launch_token=launch.token)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        worker = guarded(client, launch).but(jwt=signed)
        assert_refused(worker.but(header=OTHER).run(), "launch_token_invalid", 400)
        assert_refused(worker.but(header="marked-header").run(), "launch_token_invalid", 400)
        assert worker.but(jwt=signed[:-2]).run().status_code == 403

    log = server.process.log.read_text(errors="replace")
    assert f"/execution/task-instances/{launch.subject_id}/run" in log
    for secret in (*signed.split(".")[1:], "marked-header"):
        assert secret[:40] not in log
