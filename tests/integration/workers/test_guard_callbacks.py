# SPDX-License-Identifier: Apache-2.0
"""Callbacks under the guard: claimed, run once, their result reported (rules 12 and 19)."""

from __future__ import annotations

import uuid

import pytest

from tests.support import guarded_callbacks
from tests.support.fence_server import EXECUTION_TOKEN, Answer, FenceServer, refusal
from tests.support.guard_host import GuardHost
from tests.support.workloads import make_callback_workload

SUCCEED = f"{guarded_callbacks.__name__}.succeed"
FAIL = f"{guarded_callbacks.__name__}.fail"


def new_workload(path=SUCCEED, **kwargs):
    return make_callback_workload(path, str(uuid.uuid4()), kwargs)


def test_a_callback_is_claimed_run_and_reported(guard, fence):
    workload = new_workload(word="called")

    assert guard.run(workload, fence.url) == {"type": "Completed", "exit_code": 0}

    assert guard.take_marks() == ["called"]
    claim, report = fence.requests
    path = f"/dispatcher/callbacks/{workload.callback.id}"
    assert (claim.method, claim.path) == ("PATCH", f"{path}/run")
    assert set(claim.body) == {"hostname", "pid"}
    assert (report.method, report.path) == ("PATCH", f"{path}/state")
    assert report.body == {"state": "success", "output": None}
    for request in (claim, report):
        assert request.headers["authorization"] == f"Bearer {workload.token}"
    assert claim.headers["airflow-launch-claimant"] == report.headers["airflow-launch-claimant"]


def test_a_failed_callback_is_reported_with_the_text_of_its_exception(guard, fence):
    """A2: the body raises."""
    assert guard.run(new_workload(FAIL), fence.url) == {"type": "Completed", "exit_code": 1}

    assert guard.take_marks() == ["failed callback"]
    report = fence.calls("callback-state")[0].body
    assert report["state"] == "failed"
    assert "ValueError: the pager is unreachable" in report["output"]


def test_a_callback_runs_with_the_execution_token_of_the_claim(guard, fence):
    """A12: a callback may use variables."""
    fence.fix("guarded", Answer(200, {"key": "guarded", "value": "from a variable"}))
    workload = new_workload(f"{guarded_callbacks.__name__}.read_variable")

    assert guard.run(workload, fence.url) == {"type": "Completed", "exit_code": 0}

    assert guard.take_marks() == ["from a variable"]
    assert fence.calls("guarded")[0].headers["authorization"] == f"Bearer {EXECUTION_TOKEN}"


def test_a_second_delivery_is_refused_and_the_body_runs_once(guard, fence):
    """A8: the message is delivered twice."""
    workload = new_workload()

    assert guard.run(workload, fence.url)["type"] == "Completed"
    assert guard.run(workload, fence.url) == {"type": "Refused", "reason": "launch_consumed"}

    assert guard.take_marks() == ["callback"]
    assert len(fence.calls("callback-state")) == 1


def test_a_callback_that_no_longer_exists_ends_cleanly(guard, fence):
    fence.fix("callback-run", refusal("not_found", 404))

    assert guard.run(new_workload(), fence.url) == {"type": "Refused", "reason": "not_found"}
    assert guard.take_marks() == []


@pytest.mark.parametrize("status", [400, 403, 503])
def test_any_other_answer_to_the_claim_is_an_error_and_runs_nothing(guard, fence, status):
    fence.fix("callback-run", *[refusal("launch_token_invalid", status)] * 2)

    assert guard.run(new_workload(), fence.url, report_attempts=1)["type"] == "ServerResponseError"
    assert guard.take_marks() == []


@pytest.mark.parametrize("answer", [Answer(503), Answer(0)], ids=["busy", "cut"])
def test_a_claim_is_repeated_while_the_server_is_away(guard, fence, answer):
    """It may have granted the claim before it went, and then nobody else may run the callback."""
    fence.fix("callback-run", *[answer] * 4)
    workload = new_workload()

    assert guard.run(workload, fence.url, report_attempts=3) == {"type": "Completed", "exit_code": 0}

    claimants = {claim.headers["airflow-launch-claimant"] for claim in fence.calls("callback-run")}
    assert len(claimants) == 1
    assert guard.take_marks() == ["callback"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(refusal("launch_revoked"), "launch_revoked"), (refusal("not_found", 404), "not_found")],
)
def test_a_refused_report_ends_cleanly(guard, fence, answer, reason):
    fence.fix("callback-state", answer)

    assert guard.run(new_workload(), fence.url) == {"type": "Stopped", "reason": reason}


def test_a_report_is_repeated_until_it_is_taken(guard, fence):
    fence.fix("callback-state", *[Answer(503)] * 5)

    assert guard.run(new_workload(FAIL), fence.url, report_attempts=3) == {
        "type": "Completed",
        "exit_code": 1,
    }

    reports = fence.calls("callback-state")
    assert len(reports) == 6
    assert {report.body["state"] for report in reports} == {"failed"}
    assert guard.take_marks() == ["failed callback"]


@pytest.mark.parametrize("status", [404, 405])
def test_a_report_that_meets_a_server_without_the_plugin_is_repeated(guard, fence, status):
    """B4: during the upgrade of several API servers, another one than that which took the claim."""
    fence.fix("callback-state", Answer(status, {"detail": "what Airflow says of unknown paths"}))

    assert guard.run(new_workload(), fence.url, report_attempts=2) == {"type": "Completed", "exit_code": 0}
    assert len(fence.calls("callback-state")) == 2


@pytest.mark.parametrize("status", [503, 403])
def test_a_report_that_is_not_taken_is_an_error(guard, fence, status):
    fence.fix("callback-state", *[Answer(status)] * 4)

    assert guard.run(new_workload(), fence.url, report_attempts=2)["type"] == "ReportNotDeliveredError"


def test_a_server_that_is_gone_when_the_callback_ends_is_an_error(guard, fence):
    """The claim stands, so nothing runs the body again; the exit code says that the result is missing."""
    fence.fix("callback-state", *[Answer(0)] * 4)

    assert guard.run(new_workload(), fence.url, report_attempts=2)["type"] == "ReportNotDeliveredError"


def test_without_the_plugin_a_callback_is_run_as_stock_with_a_warning(guard):
    """B4: our worker with an API server without the plugin."""
    with FenceServer(with_plugin=False) as bare:
        assert guard.run(new_workload(), bare.url) == {"type": "Completed", "exit_code": 0}

    assert guard.take_marks() == ["callback"]
    assert [request.call for request in bare.requests] == ["callback-run"]
    assert "no dispatcher plugin" in guard.take_log()


def test_without_the_plugin_a_required_fence_runs_nothing(tmp_path):
    required = {"AIRFLOW__DISPATCHER__FENCE": "required"}
    with GuardHost(tmp_path, required) as host, FenceServer(with_plugin=False) as bare:
        assert host.run(new_workload(), bare.url)["type"] == "FenceMissingError"
        assert host.take_marks() == []


def test_a_callback_of_the_stock_executor_is_run_without_a_claim(guard, fence):
    assert guard.run(make_callback_workload(SUCCEED), fence.url) == {"type": "Completed", "exit_code": 0}

    assert guard.take_marks() == ["callback"]
    assert fence.requests == []


def test_a_callback_that_cannot_be_started_is_reported_and_raised(guard, fence, airflow_home):
    workload = new_workload()
    log = airflow_home / "logs" / workload.log_path
    log.mkdir(parents=True)  # a folder where the log file should be

    assert guard.run(workload, fence.url)["type"] == "IsADirectoryError"

    assert fence.calls("callback-state")[0].body["state"] == "failed"
    assert "IsADirectoryError" in fence.calls("callback-state")[0].body["output"]
    assert list(log.iterdir()) == []
