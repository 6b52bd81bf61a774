# SPDX-License-Identifier: Apache-2.0
"""The status of a pod at each step of its life."""

from __future__ import annotations

import pytest

from dispatcher.local.cluster import podstatus
from dispatcher.local.cluster.podstatus import Container

CONTAINER = Container("base", "image", "run")
FRESH = {"phase": "Pending", "qosClass": "BestEffort"}


def life():
    """Return the statuses of a pod that is placed, waits, and runs."""
    scheduled = podstatus.scheduled(FRESH, "t1")
    waiting = podstatus.waiting(scheduled, CONTAINER, "t2", "ContainerCreating")
    return scheduled, waiting, podstatus.running(waiting, CONTAINER, "t3")


def conditions(status):
    return {
        one["type"]: (one["status"], one["lastTransitionTime"], one.get("reason"))
        for one in status["conditions"]
    }


def state(status):
    (container,) = status["containerStatuses"]
    return container["state"]


def test_each_step_leaves_the_status_before_alone():
    scheduled, waiting, running = life()

    assert FRESH == {"phase": "Pending", "qosClass": "BestEffort"}
    assert [status["phase"] for status in (scheduled, waiting, running)] == ["Pending", "Pending", "Running"]
    assert state(waiting) == {"waiting": {"reason": "ContainerCreating"}}
    assert state(running) == {"running": {"startedAt": "t3"}}
    assert "containerStatuses" not in scheduled


def test_the_time_of_a_condition_is_that_of_its_last_change():
    _scheduled, waiting, running = life()

    assert conditions(waiting) == {
        "PodScheduled": ("True", "t1", None),
        "Initialized": ("True", "t2", None),
        "Ready": ("False", "t2", "ContainersNotReady"),
        "ContainersReady": ("False", "t2", "ContainersNotReady"),
    }
    assert conditions(running) == {
        "PodScheduled": ("True", "t1", None),
        "Initialized": ("True", "t2", None),
        "Ready": ("True", "t3", None),
        "ContainersReady": ("True", "t3", None),
    }
    assert running["startTime"] == "t2"


@pytest.mark.parametrize(
    ("code", "phase", "reason", "condition"),
    [(0, "Succeeded", "Completed", "PodCompleted"), (7, "Failed", "Error", "ContainersNotReady")],
)
def test_the_end(code, phase, reason, condition):
    ended = podstatus.finished(life()[-1], CONTAINER, "t4", code)

    assert ended["phase"] == phase
    assert state(ended)["terminated"] == {
        "exitCode": code,
        "reason": reason,
        "startedAt": "t3",
        "finishedAt": "t4",
        "containerID": "process://run",
    }
    assert conditions(ended)["Ready"] == ("False", "t4", condition)


def test_a_deadline_is_a_failure_whatever_the_exit_code():
    ended = podstatus.past_deadline(life()[-1], CONTAINER, "t4", 0)

    assert (ended["phase"], ended["reason"]) == ("Failed", "DeadlineExceeded")
    assert state(ended)["terminated"]["exitCode"] == 0


def test_what_cannot_run_never_started():
    ended = podstatus.cannot_run(life()[1], CONTAINER, "t4", "no such file")

    assert ended["phase"] == "Failed"
    assert state(ended)["terminated"]["reason"] == "ContainerCannotRun"
    assert state(ended)["terminated"]["message"] == "no such file"


def test_what_is_stopped_before_its_start_has_failed():
    assert podstatus.never_started(life()[1], CONTAINER, "t4")["phase"] == "Failed"


def test_what_no_node_takes_says_why():
    status = podstatus.unschedulable(FRESH, "t1", "full")

    assert conditions(status) == {"PodScheduled": ("False", "t1", "Unschedulable")}
    assert podstatus.unschedulable(status, "t2", "full") == status
