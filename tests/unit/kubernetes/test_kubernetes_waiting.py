# SPDX-License-Identifier: Apache-2.0
"""Pods that have not started: the table of cases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.backends.kubernetes.identity import PodIdentity
from dispatcher.backends.kubernetes.waiting import Patience, give_up, read_waiting
from dispatcher.domain.workload import WorkloadKind

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
STOCK_REASONS = (
    "CreateContainerConfigError",
    "ErrImagePull",
    "CreateContainerError",
    "ImageInspectError",
    "InvalidImageName",
)
LIMIT = 600.0


def make_pod(status: dict[str, Any] | None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", **metadata}, "status": status}


def container(name: str = "base", **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


def waiting(reason: str | None, message: str | None = None) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def pending(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": list(containers), **more}


UNSCHEDULABLE = pending(
    conditions=[
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient memory.",
        }
    ]
)
BACK_OFF = pending(container(**waiting("ImagePullBackOff", 'Back-off pulling image "none"')))

STARTED = {
    "running": {"phase": "Running", "containerStatuses": [container(running={})]},
    "base runs, a sidecar cannot be pulled": pending(
        container(running={}), container("sidecar", **waiting("ErrImagePull"))
    ),
    "base has ended, a sidecar cannot be pulled": pending(
        container(terminated={"exitCode": 0}), container("sidecar", **waiting("ErrImagePull"))
    ),
    "failed": {"phase": "Failed"},
    "succeeded": {"phase": "Succeeded"},
    "unknown": {"phase": "Unknown"},
}

IN_TIME: dict[str, tuple[dict[str, Any] | None, str | None]] = {
    "no status yet": (None, None),
    "empty status": ({}, None),
    "nothing said": ({"phase": "Pending"}, None),
    "unschedulable": (UNSCHEDULABLE, "Unschedulable: 0/3 nodes are available: 3 Insufficient memory."),
    "back-off": (BACK_OFF, 'container base: ImagePullBackOff: Back-off pulling image "none"'),
    "volume missing": (
        pending(container(**waiting("ContainerCreating"))),
        "container base: ContainerCreating: its volumes, network or image are not there yet; "
        "see the events of the pod",
    ),
    "init container first": (
        pending(
            container(**waiting("PodInitializing")),
            initContainerStatuses=[container("git", **waiting("ImagePullBackOff", "no such tag"))],
        ),
        "init container git: ImagePullBackOff: no such tag",
    ),
    "sidecar alone": (
        pending(container(**waiting(None)), container("sidecar", **waiting("ErrImagePull"))),
        None,
    ),
    "too many pulls at once": (
        pending(container(**waiting("ErrImagePull", "pull QPS exceeded"))),
        "container base: ErrImagePull: pull QPS exceeded",
    ),
}

FATAL: dict[str, tuple[dict[str, Any], str, bool]] = {
    "image name": (
        pending(container(**waiting("InvalidImageName", "couldn't parse image"))),
        "container base: InvalidImageName: couldn't parse image",
        False,
    ),
    "image never pulled": (
        pending(container(**waiting("ErrImageNeverPull", "not present with pull policy of Never"))),
        "container base: ErrImageNeverPull: not present with pull policy of Never",
        True,
    ),
    "image pull": (
        pending(container(**waiting("ErrImagePull", "429 Too Many Requests"))),
        "container base: ErrImagePull: 429 Too Many Requests",
        True,
    ),
    "config map missing": (
        pending(container(**waiting("CreateContainerConfigError", 'configmap "x" not found'))),
        'container base: CreateContainerConfigError: configmap "x" not found',
        True,
    ),
    "init container": (
        pending(
            container(**waiting("PodInitializing")),
            initContainerStatuses=[
                container("first", terminated={"exitCode": 0}),
                container("git", **waiting("CreateContainerError", "boom")),
            ],
        ),
        "init container git: CreateContainerError: boom",
        True,
    ),
}


def judge(status, *, after: float = 0.0, kind: WorkloadKind = WorkloadKind.TASK, fatal=STOCK_REASONS):
    found = read_waiting(make_pod(status))
    assert found is not None
    identity = PodIdentity("token", kind, "airflow", "pod", "uid")
    patience = Patience(fatal=fatal, seconds={WorkloadKind.CALLBACK: LIMIT})
    return found, give_up(identity, found, patience, CREATED + timedelta(seconds=after))


@pytest.mark.parametrize("status", STARTED.values(), ids=STARTED.keys())
def test_what_has_started_waits_for_nothing(status):
    assert read_waiting(make_pod(status)) is None


def test_what_is_being_deleted_is_not_waited_for():
    assert read_waiting(make_pod(UNSCHEDULABLE, deletionTimestamp="2026-01-01T00:00:00Z")) is None


@pytest.mark.parametrize(("status", "why"), IN_TIME.values(), ids=IN_TIME.keys())
def test_what_may_still_start_is_waited_for(status, why):
    found, given_up = judge(status, after=10 * LIMIT)
    assert found.why == why
    assert given_up is None, "how long a task may wait is decided by Airflow"
    assert judge(status, after=LIMIT - 1, kind=WorkloadKind.CALLBACK)[1] is None


@pytest.mark.parametrize(("status", "why"), IN_TIME.values(), ids=IN_TIME.keys())
def test_fault_81_a_callback_that_does_not_start_in_time_is_given_up_with_the_reason(status, why):
    _, given_up = judge(status, after=LIMIT, kind=WorkloadKind.CALLBACK)
    assert given_up is not None
    expected = f"the pod did not start within 600 s: {why or 'the cluster gives no reason'}"
    assert given_up.reason == expected
    assert (given_up.ok, given_up.given_up, given_up.by_infrastructure) == (False, True, True)


@pytest.mark.parametrize(("status", "reason", "again"), FATAL.values(), ids=FATAL.keys())
def test_fault_81_a_fatal_reason_ends_the_wait_at_once(status, reason, again):
    _, given_up = judge(status)
    assert given_up is not None
    assert given_up.reason == reason
    assert (given_up.ok, given_up.given_up, given_up.gone) == (False, True, False)
    assert given_up.by_infrastructure == again


def test_which_reasons_are_fatal_is_for_the_user_to_say():
    status = FATAL["image pull"][0]
    assert judge(status, fatal=())[1] is None
    assert judge(BACK_OFF, fatal=("ImagePullBackOff",))[1] is not None
    assert judge(FATAL["image name"][0], fatal=())[1] is not None, "nothing can come of it"


def test_a_pod_without_a_time_of_creation_is_not_given_up():
    found = read_waiting({"status": {"phase": "Pending"}})
    assert found is not None
    assert datetime.now(tz=UTC) - found.since < timedelta(seconds=LIMIT)
