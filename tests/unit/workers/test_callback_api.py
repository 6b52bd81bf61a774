# SPDX-License-Identifier: Apache-2.0
"""Where the callback endpoints are, and what is read from a callback's log."""

from __future__ import annotations

import json

import pytest

from tests.support.fence_server import FenceServer
from workers.callback_api import OUTPUT_LIMIT, CallbackApi, dispatcher_base_url
from workers.callback_log import CallbackLog
from workers.execution import Execution

EXECUTION = Execution(token="token", claimant="nonce", kind="callback", subject_id="subject")


@pytest.mark.parametrize(
    ("server", "base"),
    [
        ("http://localhost:8080/execution/", "http://localhost:8080/"),
        ("https://airflow.example/team/execution", "https://airflow.example/team/"),
        ("http://localhost:8080/", "http://localhost:8080/"),
        ("http://localhost:8080/my-execution/", "http://localhost:8080/my-execution/"),
    ],
)
def test_the_endpoints_are_next_to_the_execution_api(server, base):
    assert dispatcher_base_url(server) == base


def test_the_end_of_a_long_output_is_reported():
    with FenceServer() as fence:
        CallbackApi(fence.url, "jwt", EXECUTION).report("failed", "x" * OUTPUT_LIMIT + "the cause")

    output = fence.calls("callback-state")[0].body["output"]
    assert len(output) == OUTPUT_LIMIT
    assert output.endswith("the cause")


def test_an_output_that_is_no_utf_8_is_reported():
    """The name of a file may bring it into an exception's text."""
    with FenceServer() as fence:
        CallbackApi(fence.url, "jwt", EXECUTION).report("failed", "no such file: caf\udce9")

    assert fence.calls("callback-state")[0].body["output"] == "no such file: caf?"


@pytest.fixture
def log_file(airflow_home):
    path = airflow_home / "logs" / "callback.log"
    path.parent.mkdir(exist_ok=True)
    yield path
    path.unlink(missing_ok=True)


def write(path, *entries):
    with path.open("ab") as file:
        for entry in entries:
            file.write((entry if isinstance(entry, str) else json.dumps(entry)).encode() + b"\n")


def failure(text):
    return {"event": "Callback failed", "error": text}


def test_the_last_failure_of_this_execution_is_read(log_file):
    write(log_file, failure("of an earlier launch"))
    log = CallbackLog("callback.log")

    write(log_file, failure("first"), "no json", '"text"', failure("last"), {"event": "Other", "error": "no"})

    assert log.failure() == "last"


def test_what_an_earlier_launch_wrote_is_not_read(log_file):
    write(log_file, failure("of an earlier launch"))
    log = CallbackLog("callback.log")

    write(log_file, {"event": "Callback failed", "error": None})

    assert log.failure() is None


def test_a_log_that_was_never_written_has_no_failure(log_file):
    assert CallbackLog("callback.log").failure() is None
    assert CallbackLog(None).failure() is None
