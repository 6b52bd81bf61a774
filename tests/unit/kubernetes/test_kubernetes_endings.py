# SPDX-License-Identifier: Apache-2.0
"""From a pod to an observation: the table of cases."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.backends.kubernetes.endings import classify_pod
from dispatcher.domain.launch import claimant_from_nonce
from dispatcher.domain.pod_claimant import nonce_in_pod

TOKEN = "0b7e4a54-55f5-4f0e-8d1a-1f8f0a6e0001"
UID = "f0e1d2c3-0000-4000-8000-000000000001"


def make_pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"dag-task-{TOKEN}",
            "namespace": "airflow",
            "uid": UID,
            "annotations": {"airflow-launch-token": TOKEN, "airflow-workload-type": "task"},
            **metadata,
        },
        "status": status or {},
    }


def container(name: str = "base", **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


def terminated(code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


NOT_ENDED = {
    "no status yet": {},
    "pending": {"phase": "Pending"},
    "image cannot be pulled": {
        "phase": "Pending",
        "containerStatuses": [container(waiting={"reason": "ErrImagePull"})],
    },
    "init container has ended": {
        "phase": "Pending",
        "initContainerStatuses": [container("init", **terminated(0))],
        "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
    },
    "running": {"phase": "Running", "containerStatuses": [container(running={})]},
    "sidecar has ended, base runs": {
        "phase": "Running",
        "containerStatuses": [container(running={}), container("sidecar", **terminated(1))],
    },
    "node unknown": {"phase": "Unknown"},
    "container state missing": {"phase": "Running", "containerStatuses": [{"name": "base"}]},
}

ENDED_WELL = {
    "succeeded": {"phase": "Succeeded"},
    "base ended with 0": {"phase": "Succeeded", "containerStatuses": [container(**terminated(0))]},
    "base ended with 0, sidecar runs": {
        "phase": "Running",
        "containerStatuses": [container(**terminated(0)), container("sidecar", running={})],
    },
    "base ended with 0, sidecar failed": {
        "phase": "Failed",
        "containerStatuses": [container(**terminated(0)), container("sidecar", **terminated(1))],
    },
}

ENDED_BADLY: dict[str, tuple[dict[str, Any], str]] = {
    "failed without a word": ({"phase": "Failed"}, "the pod failed; the cluster gives no reason"),
    "exit code alone": (
        {"phase": "Failed", "containerStatuses": [container(**terminated(1))]},
        "container base: exit code 1",
    ),
    "out of memory": (
        {"phase": "Failed", "containerStatuses": [container(**terminated(137, reason="OOMKilled"))]},
        "container base: OOMKilled, exit code 137",
    ),
    "killed by a signal": (
        {"phase": "Failed", "containerStatuses": [container(**terminated(143, reason="Error", signal=15))]},
        "container base: Error, exit code 143, signal 15",
    ),
    "message of many lines": (
        {"phase": "Failed", "containerStatuses": [container(**terminated(1, message="one\n  two\n"))]},
        "container base: one two, exit code 1",
    ),
    "token ran out": (
        {"phase": "Failed", "containerStatuses": [container(**terminated(75, reason="Error"))]},
        "container base: Error, exit code 75; "
        "it waited for longer than its workload token is valid, and nothing was run",
    ),
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "},
        "Evicted: The node was low on resource: memory.",
    ),
    "evicted while base shut down with 0": (
        {"phase": "Failed", "reason": "Evicted", "containerStatuses": [container(**terminated(0))]},
        "Evicted",
    ),
    "deadline": (
        {
            "phase": "Failed",
            "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline",
            "containerStatuses": [container(**terminated(137, reason="Error"))],
        },
        "DeadlineExceeded: Pod was active on the node longer than the specified deadline; "
        "container base: Error, exit code 137",
    ),
    "init container failed": (
        {
            "phase": "Failed",
            "initContainerStatuses": [container("git-sync", **terminated(137, reason="OOMKilled"))],
            "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
        },
        "init container git-sync: OOMKilled, exit code 137",
    ),
    "base failed, sidecar runs": (
        {
            "phase": "Running",
            "containerStatuses": [container("sidecar", running={}), container(**terminated(2))],
        },
        "container base: exit code 2",
    ),
}


ALONE = {
    "exit code alone",
    "message of many lines",
    "base failed, sidecar runs",
    "deadline",
}
"""Endings of ``ENDED_BADLY`` that are the workload's own doing; the others came from outside."""

MORE_FROM_OUTSIDE: dict[str, tuple[dict[str, Any], str]] = {
    "node went away": (
        {"phase": "Failed", "reason": "NodeLost", "message": "Node worker-3 is lost"},
        "NodeLost: Node worker-3 is lost",
    ),
    "not admitted": (
        {"phase": "Failed", "reason": "OutOfmemory", "message": "Node didn't have enough resource"},
        "OutOfmemory: Node didn't have enough resource",
    ),
    "preempted": (
        {
            "phase": "Failed",
            "conditions": [
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": "preempted for a pod of higher priority",
                }
            ],
            "containerStatuses": [container(**terminated(1, reason="Error"))],
        },
        "PreemptionByScheduler: preempted for a pod of higher priority; container base: Error, exit code 1",
    ),
    "container lost": (
        {
            "phase": "Failed",
            "containerStatuses": [container(**terminated(137, reason="ContainerStatusUnknown"))],
        },
        "container base: ContainerStatusUnknown, exit code 137",
    ),
    "process not started": (
        {
            "phase": "Failed",
            "containerStatuses": [container(**terminated(128, reason="StartError", message="exec: python"))],
        },
        "container base: StartError: exec: python, exit code 128",
    ),
    "failed while the image was pulled": (
        {
            "phase": "Failed",
            "containerStatuses": [container(waiting={"reason": "ErrImagePull", "message": "no such host"})],
        },
        "container base: ErrImagePull: no such host",
    ),
    "killed": (
        {"phase": "Failed", "containerStatuses": [container(**terminated(137, reason="Error"))]},
        "container base: Error, exit code 137",
    ),
}


@pytest.mark.parametrize("status", NOT_ENDED.values(), ids=NOT_ENDED.keys())
def test_what_has_not_ended(status):
    assert classify_pod(make_pod(status)) is None
    assert classify_pod(make_pod(status, deletionTimestamp="2026-01-01T00:00:00Z")) is None


@pytest.mark.parametrize("status", NOT_ENDED.values(), ids=NOT_ENDED.keys())
def test_what_was_deleted_before_its_end_is_gone(status):
    observation = classify_pod(make_pod(status, deletionTimestamp="2026-01-01T00:00:00Z"), deleted=True)
    assert observation is not None
    assert observation.gone
    assert not observation.ok
    assert observation.reason is not None
    assert observation.reason.startswith(f"pod airflow/dag-task-{TOKEN}: deleted ")


@pytest.mark.parametrize("status", NOT_ENDED.values(), ids=NOT_ENDED.keys())
def test_what_left_the_watch_without_being_deleted_is_not_known_to_be_gone(status):
    assert classify_pod(make_pod(status), deleted=True) is None


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("status", ENDED_WELL.values(), ids=ENDED_WELL.keys())
def test_what_ended_well(status, deleted):
    observation = classify_pod(make_pod(status), deleted=deleted)
    assert observation is not None
    assert (observation.ok, observation.reason, observation.gone) == (True, None, False)
    assert observation.token == TOKEN
    assert observation.hostname == f"dag-task-{TOKEN}"


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(("status", "reason"), ENDED_BADLY.values(), ids=ENDED_BADLY.keys())
def test_what_ended_badly(status, reason, deleted):
    observation = classify_pod(make_pod(status), deleted=deleted)
    assert observation is not None
    assert (observation.ok, observation.reason, observation.gone) == (False, reason, False)


@pytest.mark.parametrize("name", ENDED_BADLY)
def test_fault_83_what_ended_it_from_outside_is_told_from_its_own_failure(name):
    observation = classify_pod(make_pod(ENDED_BADLY[name][0]))
    assert observation is not None
    assert observation.by_infrastructure == (name not in ALONE)
    assert not observation.given_up


@pytest.mark.parametrize(("status", "reason"), MORE_FROM_OUTSIDE.values(), ids=MORE_FROM_OUTSIDE.keys())
def test_fault_83_what_never_ran_is_not_the_fault_of_the_workload(status, reason):
    observation = classify_pod(make_pod(status))
    assert observation is not None
    assert (observation.ok, observation.reason, observation.by_infrastructure) == (False, reason, True)


def test_a_failure_while_the_pod_is_being_deleted_is_the_work_of_who_deleted_it():
    failed = {"phase": "Failed", "containerStatuses": [container(**terminated(1, reason="Error"))]}
    observation = classify_pod(make_pod(failed, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert observation is not None
    assert observation.by_infrastructure


@pytest.mark.parametrize("status", ENDED_WELL.values(), ids=ENDED_WELL.keys())
def test_what_ended_well_was_ended_by_nobody(status):
    observation = classify_pod(make_pod(status, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert observation is not None
    assert not observation.by_infrastructure


def test_what_is_gone_was_taken_away():
    observation = classify_pod(make_pod({}, deletionTimestamp="2026-01-01T00:00:00Z"), deleted=True)
    assert observation is not None
    assert observation.by_infrastructure


def test_no_reason_holds_a_jwt():
    token = "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJ0aSJ9.c2lnbmF0dXJl-_x"
    message = f"failed to create task: argument --json-string {token} is too long"
    status = {"phase": "Failed", "containerStatuses": [container(**terminated(128, message=message))]}
    observation = classify_pod(make_pod(status))
    assert observation is not None
    assert observation.reason == (
        "container base: failed to create task: argument --json-string *** is too long, exit code 128"
    )


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_an_ending_tells_of_the_claimants_that_ran_in_this_very_pod(phase):
    observation = classify_pod(make_pod({"phase": phase}))
    assert observation is not None
    assert observation.claimant is not None
    assert claimant_from_nonce(nonce_in_pod(UID, "start")).startswith(observation.claimant)
    other = claimant_from_nonce(nonce_in_pod(UID.replace("f0", "e0"), "start"))
    assert not other.startswith(observation.claimant)


@pytest.mark.parametrize(
    "annotations",
    [
        None,
        {},
        {"airflow-launch-token": TOKEN},
        {"airflow-workload-type": "task"},
        {"airflow-launch-token": TOKEN, "airflow-workload-type": "sorcery"},
        {"airflow-launch-token": "", "airflow-workload-type": "task"},
        {"dag_id": "d", "task_id": "t", "try_number": "1"},
    ],
)
@pytest.mark.parametrize("deleted", [False, True])
def test_fault_60_a_pod_that_does_not_say_what_it_is_is_left_alone(annotations, deleted):
    pod = make_pod({"phase": "Failed"}, annotations=annotations)
    assert classify_pod(pod, deleted=deleted) is None


def test_labels_are_no_identity():
    pod = make_pod({"phase": "Failed"}, annotations=None, labels={"airflow-launch-token": TOKEN})
    assert classify_pod(pod) is None


def test_a_connection_test_is_known_by_its_own_id():
    annotations = {"airflow-connection-test": TOKEN, "airflow-workload-type": "test_connection"}
    observation = classify_pod(make_pod({"phase": "Succeeded"}, annotations=annotations))
    assert observation is not None
    assert observation.token == TOKEN
