# SPDX-License-Identifier: Apache-2.0
"""Words for what a pod's status says: which container, what reason, which exit code. Pure, on raw JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dispatcher.domain.text import readable
from dispatcher.domain.wire import EXIT_EXPIRED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BASE_CONTAINER = "base"

TOKEN_RAN_OUT = "it waited for longer than its workload token is valid, and nothing was run"
NO_REASON = "the pod failed; the cluster gives no reason"

_GROUPS: Sequence[tuple[str, str]] = (
    ("initContainerStatuses", "init container"),
    ("containerStatuses", "container"),
)
_MESSAGE_LIMIT = 200


def explain_failure(status: Mapping[str, Any]) -> str:
    """Say why a pod failed, in one line that is never empty.

    :param status: of a pod
    """
    told = [say(status), *_disruption(status), *_failed_containers(status)]
    return "; ".join(part for part in told if part) or NO_REASON


def explain_waiting(status: Mapping[str, Any]) -> str | None:
    """Say what keeps a pod from starting, in one line; None where the cluster gives no reason.

    :param status: of a pod
    """
    told = [f"{what} {name}: {_say_waiting(waiting)}" for what, name, waiting in waiting_containers(status)]
    return "; ".join(told) or _why_unscheduled(status)


def waiting_containers(status: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield what the workload waits for: the init containers and ``base``, as far as they wait for a reason.

    A sidecar keeps nobody from starting.

    :param status: of a pod
    :returns: of each what it is, its name, and the ``waiting`` state
    """
    for key, what in _GROUPS:
        for container in status.get(key) or ():
            if key == "containerStatuses" and container.get("name") != BASE_CONTAINER:
                continue
            waiting = (container.get("state") or {}).get("waiting")
            if waiting and waiting.get("reason") not in (None, "PodInitializing"):
                yield what, str(container.get("name")), waiting


def say(thing: Mapping[str, Any]) -> str | None:
    """Return the reason and the message of a status in one line, without anything that looks like a JWT.

    :param thing: the status of a pod, the state of a container, or a condition
    """
    parts = [str(part) for part in (thing.get("reason"), thing.get("message")) if part]
    return readable(": ".join(parts))[:_MESSAGE_LIMIT] or None


def _say_waiting(waiting: Mapping[str, Any]) -> str | None:
    if waiting.get("reason") == "ContainerCreating" and not waiting.get("message"):
        # The kubelet tells what is missing in events alone.
        return "ContainerCreating: its volumes, network or image are not there yet; see the events of the pod"
    return say(waiting)


def _why_unscheduled(status: Mapping[str, Any]) -> str | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return say(condition)
    return None


def _disruption(status: Mapping[str, Any]) -> Iterator[str | None]:
    if status.get("reason"):
        return
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            yield say(condition)


def _failed_containers(status: Mapping[str, Any]) -> Iterator[str]:
    for key, what in _GROUPS:
        for container in status.get(key) or ():
            state = container.get("state") or {}
            terminated, waiting = state.get("terminated"), state.get("waiting")
            if terminated and terminated.get("exitCode") != 0:
                yield f"{what} {container.get('name')}: {_how_it_terminated(terminated)}"
                if container.get("name") == BASE_CONTAINER and terminated.get("exitCode") == EXIT_EXPIRED:
                    yield TOKEN_RAN_OUT
            elif waiting and waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
                yield f"{what} {container.get('name')}: {say(waiting)}"


def _how_it_terminated(terminated: Mapping[str, Any]) -> str:
    code = terminated.get("exitCode")
    parts = [say(terminated), f"exit code {code}" if code is not None else None]
    if signal := terminated.get("signal"):
        parts.append(f"signal {signal}")
    return ", ".join(part for part in parts if part) or "terminated"
