# SPDX-License-Identifier: Apache-2.0
"""Tasks under the guard: what is presented, what a refusal does, and what never ends quietly (rule 12)."""

from __future__ import annotations

import uuid

import pytest

from tests.support.fence_server import EXECUTION_TOKEN, Answer, refusal
from tests.support.workloads import make_task_workload
from workers.compat import acknowledges_stop


def new_token() -> str:
    return str(uuid.uuid4())


def test_a_launch_is_presented_on_every_call_about_the_task(guard, fence):
    token = new_token()
    workload = make_task_workload("succeed", token)

    assert guard.run(workload, fence.url) == {"type": "Completed", "exit_code": 0}

    assert guard.take_marks() == ["succeed"]
    about_the_task = [request for request in fence.requests if str(workload.ti.id) in request.path]
    assert {request.call for request in about_the_task} >= {"run", "state"}
    assert {request.headers["airflow-launch-token"] for request in about_the_task} == {token}
    assert len({request.headers["airflow-launch-claimant"] for request in about_the_task}) == 1
    assert fence.calls("run")[0].headers["authorization"] == f"Bearer {workload.token}"
    assert fence.calls("state")[0].headers["authorization"] == f"Bearer {EXECUTION_TOKEN}"


def test_each_execution_is_a_claimant_of_its_own(guard, fence):
    workload = make_task_workload("succeed", new_token())

    assert guard.run(workload, fence.url)["type"] == "Completed"
    assert guard.run(workload, fence.url) == {"type": "Refused", "reason": "launch_consumed"}

    first, second = fence.calls("run")
    assert first.headers["airflow-launch-claimant"] != second.headers["airflow-launch-claimant"]
    assert guard.take_marks() == ["succeed"]


def test_a_repeated_request_is_of_the_same_claimant(guard, fence):
    """B1: the answer to ``/run`` is lost, the client asks again."""
    fence.fix("run", Answer(502))

    assert guard.run(make_task_workload("succeed", new_token()), fence.url)["type"] == "Completed"

    first, second = fence.calls("run")
    assert first.headers["airflow-launch-claimant"] == second.headers["airflow-launch-claimant"]


@pytest.mark.parametrize(
    "reason", ["launch_superseded", "launch_consumed", "launch_revoked", "launch_required"]
)
def test_a_refused_claim_runs_nothing_and_says_so_in_one_line(guard, fence, reason):
    token = new_token()
    workload = make_task_workload("succeed", token)
    fence.supersede(token, reason)

    assert guard.run(workload, fence.url) == {"type": "Refused", "reason": reason}

    assert guard.take_marks() == []
    assert fence.calls("state") == []
    lines = [line for line in guard.take_log().splitlines() if reason in line]
    assert len(lines) == 1
    assert token in lines[0]
    assert str(workload.ti.id) in lines[0]


def test_a_task_that_airflow_knows_as_running_is_a_duplicate(guard, fence):
    detail = {"reason": "invalid_state", "message": "no", "previous_state": "running"}
    fence.fix("run", Answer(409, {"detail": detail}))

    outcome = guard.run(make_task_workload("succeed", new_token()), fence.url)

    assert outcome == {"type": "Refused", "reason": "already_running"}
    assert guard.take_marks() == []


@pytest.mark.parametrize(
    "answer",
    [
        refusal("launch_token_invalid", 400),
        Answer(409, {"detail": {"reason": "invalid_state", "message": "no", "previous_state": "failed"}}),
        Answer(404, {"detail": {"reason": "not_found", "message": "no"}}),
        Answer(403, {"detail": "no"}),
    ],
)
def test_any_other_answer_to_the_claim_is_an_error(guard, fence, answer):
    fence.fix("run", answer)

    assert guard.run(make_task_workload("succeed", new_token()), fence.url)["type"] == "ServerResponseError"
    assert guard.take_marks() == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refusal("launch_superseded"), "launch_superseded"),
        (Answer(410, {"detail": "gone"}), "gone"),
    ],
)
def test_a_refused_heartbeat_stops_the_task_and_ends_normally(guard, fence, answer, reason):
    fence.fix("heartbeat", Answer(204), Answer(204), answer)

    assert guard.run(make_task_workload("sleep", new_token()), fence.url) == {
        "type": "Stopped",
        "reason": reason,
    }

    assert "slept" not in guard.take_marks()
    # Airflow 3.4 says by such a call that the task has ended, which is no result of it.
    assert [call for call in fence.calls("state") if not acknowledges_stop(call.body)] == []


@pytest.mark.parametrize(("task_id", "mark"), [("succeed", "succeed"), ("fail", "fail")])
def test_a_refused_report_ends_normally(guard, fence, task_id, mark):
    """B3: a newer launch of the same task instance began while this one was running."""
    fence.fix("state", *[refusal("launch_superseded")] * 2)

    assert guard.run(make_task_workload(task_id, new_token()), fence.url) == {
        "type": "Stopped",
        "reason": "launch_superseded",
    }
    assert guard.take_marks() == [mark]


def test_a_failed_task_whose_report_is_accepted_is_completed(guard, fence):
    assert guard.run(make_task_workload("fail", new_token()), fence.url)["type"] == "Completed"

    assert fence.calls("state")[-1].body["state"] == "failed"


@pytest.mark.parametrize(
    "answer",
    [Answer(503), Answer(409, {"detail": {"reason": "invalid_state", "message": "no"}})],
)
def test_a_success_that_was_not_delivered_is_an_error(guard, fence, answer):
    """Airflow's supervisor swallows this; an exit code 0 would leave the task instance RUNNING."""
    fence.fix("state", *[answer] * 4)

    outcome = guard.run(make_task_workload("succeed", new_token()), fence.url)

    assert outcome["type"] == "ReportNotDeliveredError"


def test_a_workload_of_the_stock_executor_is_run_without_headers(guard, fence):
    assert guard.run(make_task_workload("succeed"), fence.url) == {"type": "Completed", "exit_code": 0}

    assert guard.take_marks() == ["succeed"]
    assert not any("airflow-launch-token" in request.headers for request in fence.requests)


def test_a_running_task_of_the_stock_executor_is_a_duplicate_too(guard, fence):
    detail = {"reason": "invalid_state", "message": "no", "previous_state": "running"}
    fence.fix("run", Answer(409, {"detail": detail}))

    outcome = guard.run(make_task_workload("succeed"), fence.url)

    assert outcome == {"type": "Refused", "reason": "already_running"}


def test_fault_53_no_token_is_logged(guard, fence):
    workload = make_task_workload("succeed", new_token())
    guard.run(workload, fence.url)
    guard.run(workload, fence.url)

    log = guard.take_log()
    assert workload.token not in log
    assert EXECUTION_TOKEN not in log
