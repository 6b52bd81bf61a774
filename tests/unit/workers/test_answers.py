# SPDX-License-Identifier: Apache-2.0
"""How the API server's answers are read."""

from __future__ import annotations

import sys

import pytest

from workers.api import HTTP_ERROR, HTTP_STATUS_ERROR, answer_reason, refusal_reason
from workers.task_calls import TaskCalls

HTTP = sys.modules[HTTP_ERROR.__module__.partition(".")[0]]
"""The library behind Airflow's client: httpx, or httpx2."""

TASK = "3f0c6d1e-0000-7000-8000-000000000001"


def response(status, reason=None, path=f"/execution/task-instances/{TASK}/run", **kwargs):
    body = {"json": {"detail": {"reason": reason, "message": "no"}}} if reason else kwargs
    return HTTP.Response(status, request=HTTP.Request("PATCH", f"http://server{path}"), **body)


def about(call, status, reason=None):
    return response(status, reason, f"/execution/task-instances/{TASK}/{call}")


def test_the_http_library_behind_airflows_client_has_the_bases_we_take():
    """Fails when Airflow changes what its error derives from."""
    assert (HTTP_STATUS_ERROR.__name__, HTTP_ERROR.__name__) == ("HTTPStatusError", "HTTPError")
    assert issubclass(HTTP.ConnectError, HTTP_ERROR)


@pytest.mark.parametrize(
    "reason", ["launch_superseded", "launch_consumed", "launch_revoked", "launch_required"]
)
def test_a_409_with_one_of_our_reasons_is_a_refusal(reason):
    assert refusal_reason(response(409, reason)) == reason


@pytest.mark.parametrize(
    "answer",
    [
        response(400, "launch_token_invalid"),
        response(409, "launch_token_invalid"),
        response(404, "launch_superseded"),
        response(409, "invalid_state"),
        response(409, json={"detail": "no"}),
        response(409, json={"detail": {"reason": 5}}),
        response(409, text="no"),
        response(200, json={}),
    ],
)
def test_anything_else_is_none(answer):
    assert refusal_reason(answer) is None


def test_the_reason_of_any_error_is_read():
    assert answer_reason(response(404, "not_found")) == "not_found"
    assert answer_reason(response(404, json={"detail": "Not Found"})) is None


def test_an_accepted_run_is_noted():
    calls = TaskCalls(TASK)

    calls.note(about("run", 502))
    assert not calls.claimed
    calls.note(about("run", 200))
    assert calls.claimed


def test_calls_about_others_are_passed_over():
    calls = TaskCalls(TASK)

    calls.note(response(200, path="/execution/task-instances/00000000-0000-7000-8000-000000000002/run"))
    calls.note(response(200, path=f"/execution/xcoms/{TASK}/state"))
    calls.note(response(409, "launch_revoked", path=f"/execution/task-instances/{TASK}/rtif"))

    assert calls == TaskCalls(TASK)


@pytest.mark.parametrize(
    ("answer", "stop"),
    [
        (about("heartbeat", 204), None),
        (about("heartbeat", 503), None),
        (about("heartbeat", 409, "launch_revoked"), "launch_revoked"),
        (about("heartbeat", 409, "not_running"), "not_running"),
        (about("heartbeat", 404), "not_found"),
        (about("heartbeat", 410), "gone"),
        (about("state", 409, "launch_superseded"), "launch_superseded"),
        (about("state", 409, "invalid_state"), None),
        (about("state", 404, "not_found"), None),
    ],
)
def test_an_order_to_stop_is_noted(answer, stop):
    calls = TaskCalls(TASK)

    calls.note(answer)

    assert calls.stop_reason == stop
    assert not calls.reported


def test_the_last_report_counts():
    calls = TaskCalls(TASK)

    calls.note(about("state", 503))
    assert not calls.reported
    calls.note(about("state", 204))
    assert calls.reported


@pytest.mark.parametrize(("state", "reported"), [("server_terminated", False), ("failed", True)])
def test_that_the_task_has_ended_as_ordered_is_no_report(state, reported):
    """Airflow 3.4 says so after a refused heartbeat."""
    calls = TaskCalls(TASK)
    calls.note(about("heartbeat", 409, "not_running"))
    request = HTTP.Request(
        "PATCH", f"http://server/execution/task-instances/{TASK}/state", json={"state": state}
    )

    calls.note(HTTP.Response(204, request=request))

    assert calls.reported is reported
    assert calls.stop_reason == "not_running"
