# SPDX-License-Identifier: Apache-2.0
"""The status of a pod at each step of its life. Pure: each function returns a new status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.local.cluster.store import Json

ADDRESS = "127.0.0.1"
CANNOT_RUN_CODE = 128

_NOT_READY = {"reason": "ContainersNotReady"}
_COMPLETED = {"reason": "PodCompleted"}


@dataclass(frozen=True)
class Container:
    """The container of a pod that runs.

    :param name: its name.
    :param image: its image, shown but not used.
    :param run_id: identifies this run of it.
    """

    name: str
    image: str
    run_id: str


def scheduled(status: Json, now: str) -> Json:
    """Return the status of a pod that has a node."""
    return {**status, "conditions": _conditions(status, now, {"PodScheduled": ("True", {})})}


def unschedulable(status: Json, now: str, message: str) -> Json:
    """Return the status of a pod that no node takes, and why."""
    because = {"reason": "Unschedulable", "message": message}
    return {**status, "conditions": _conditions(status, now, {"PodScheduled": ("False", because)})}


def waiting(status: Json, container: Container, now: str, reason: str, message: str = "") -> Json:
    """Return the status of a pod whose container is not started yet, and why."""
    state: Json = {"reason": reason}
    if message:
        state["message"] = message
    return {
        **_on_node(status, now),
        "phase": "Pending",
        "conditions": _conditions(status, now, {"Initialized": ("True", {}), **_unready(_NOT_READY)}),
        "containerStatuses": [_container(container, {"waiting": state})],
    }


def running(status: Json, container: Container, now: str) -> Json:
    """Return the status of a pod whose container runs."""
    return {
        **_on_node(status, now),
        "phase": "Running",
        "conditions": _conditions(
            status,
            now,
            {"Initialized": ("True", {}), "Ready": ("True", {}), "ContainersReady": ("True", {})},
        ),
        "containerStatuses": [_container(container, {"running": {"startedAt": now}})],
    }


def finished(status: Json, container: Container, now: str, exit_code: int) -> Json:
    """Return the status of a pod whose container ended."""
    ended = "Completed" if exit_code == 0 else "Error"
    return _ended(status, container, now, {"exitCode": exit_code, "reason": ended})


def past_deadline(status: Json, container: Container, now: str, exit_code: int) -> Json:
    """Return the status of a pod that was stopped because its deadline passed."""
    return {
        **_ended(status, container, now, {"exitCode": exit_code, "reason": "Error"}, failed=True),
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
    }


def cannot_run(status: Json, container: Container, now: str, message: str) -> Json:
    """Return the status of a pod whose command cannot be started."""
    state = {"exitCode": CANNOT_RUN_CODE, "reason": "ContainerCannotRun", "message": message}
    return _ended(status, container, now, state)


def never_started(status: Json, container: Container, now: str) -> Json:
    """Return the status of a pod that was stopped before its container started."""
    return {**waiting(status, container, now, "ContainerCreating"), "phase": "Failed"}


def _ended(status: Json, container: Container, now: str, terminated: Json, *, failed: bool = False) -> Json:
    succeeded = terminated["exitCode"] == 0 and not failed
    because = _COMPLETED if succeeded else _NOT_READY
    state = {
        **terminated,
        "startedAt": _started_at(status) or now,
        "finishedAt": now,
        "containerID": f"process://{container.run_id}",
    }
    conditions = {"Initialized": ("True", because if succeeded else {}), **_unready(because)}
    return {
        **_on_node(status, now),
        "phase": "Succeeded" if succeeded else "Failed",
        "conditions": _conditions(status, now, conditions),
        "containerStatuses": [_container(container, {"terminated": state})],
    }


def _on_node(status: Json, now: str) -> Json:
    address = {"hostIP": ADDRESS, "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
    return {**status, **address, "startTime": status.get("startTime", now)}


def _unready(because: Mapping[str, str]) -> dict[str, tuple[str, Mapping[str, str]]]:
    return {"Ready": ("False", because), "ContainersReady": ("False", because)}


def _started_at(status: Json) -> str | None:
    for container in status.get("containerStatuses", []):
        started: str | None = container["state"].get("running", {}).get("startedAt")
        return started
    return None


def _conditions(status: Json, now: str, wanted: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[Json]:
    """Return the conditions with the wanted ones in place; the time of one changes only with its status."""
    known = {condition["type"]: condition for condition in status.get("conditions", [])}
    for name, (value, extra) in wanted.items():
        before = known.get(name)
        since = before["lastTransitionTime"] if before and before["status"] == value else now
        known[name] = {
            "type": name,
            "status": value,
            "lastProbeTime": None,
            "lastTransitionTime": since,
            **extra,
        }
    return list(known.values())


def _container(container: Container, state: Json) -> Json:
    started = "waiting" not in state
    return {
        "name": container.name,
        "state": state,
        "lastState": {},
        "ready": "running" in state,
        "started": "running" in state,
        "restartCount": 0,
        "image": container.image,
        "imageID": container.image if started else "",
        **({"containerID": f"process://{container.run_id}"} if started else {}),
    }
