# SPDX-License-Identifier: Apache-2.0
"""From a pod as the API server shows it to an observation: pure, on raw JSON.

The container ``base`` decides. Pods of ours are never restarted, so once it has terminated the workload has
ended, whatever a sidecar still does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.backends.base import Observation
from dispatcher.backends.kubernetes.identity import PodIdentity, read_identity
from dispatcher.domain.pod_claimant import claimants_of_pod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BASE_CONTAINER = "base"
_MESSAGE_LIMIT = 200


class _Ending(NamedTuple):
    ok: bool
    reason: str | None


def classify_pod(pod: Mapping[str, Any], *, deleted: bool = False) -> Observation | None:
    """Return how a pod ended; None while that is not known, and for pods that are not ours.

    :param pod: a pod as the API server tells it
    :param deleted: this is the last that a watch by labels shows of it. That alone is no proof that it is
        gone: it may have lost a label. If nobody had asked for its deletion, its name has to be looked up.
    """
    identity = read_identity(pod)
    if identity is None:
        return None
    status = pod.get("status") or {}
    ending = _ending_of_base(status) or _ending_of_phase(status)
    if ending is None:
        certainly_gone = deleted and is_terminating(pod)
        return _gone(identity, _before_its_end(status)) if certainly_gone else None
    return Observation(
        token=identity.token,
        ok=ending.ok,
        reason=ending.reason,
        hostname=identity.name,
        claimant=claimants_of_pod(identity.uid),
    )


def vanished(identity: PodIdentity) -> Observation:
    """Return the observation for a pod of which the API server says that it does not exist.

    :param identity: the pod as it was last seen
    """
    return _gone(identity, "it does not exist any more")


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """Whether the deletion of a pod was asked for.

    :param pod: a pod as the API server tells it
    """
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def _gone(identity: PodIdentity, what: str) -> Observation:
    return Observation(
        token=identity.token,
        ok=False,
        reason=f"pod {identity.external_id}: {what}",
        hostname=identity.name,
        claimant=claimants_of_pod(identity.uid) if identity.uid else None,
        gone=True,
    )


def _before_its_end(status: Mapping[str, Any]) -> str:
    phase = str(status.get("phase") or "").lower()
    return f"deleted while {phase}" if phase in ("pending", "running") else "deleted before it ended"


def _ending_of_base(status: Mapping[str, Any]) -> _Ending | None:
    terminated = _terminated_base(status)
    if terminated is None:
        return None
    evicted = status.get("phase") == "Failed" and status.get("reason")
    if terminated.get("exitCode") == 0 and not evicted:
        return _Ending(ok=True, reason=None)
    return _Ending(ok=False, reason=_failure(status))


def _ending_of_phase(status: Mapping[str, Any]) -> _Ending | None:
    phase = status.get("phase")
    if phase == "Succeeded":
        return _Ending(ok=True, reason=None)
    if phase == "Failed":
        return _Ending(ok=False, reason=_failure(status))
    return None


def _terminated_base(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == BASE_CONTAINER:
            return _terminated(container)
    return None


def _terminated(container: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return (container.get("state") or {}).get("terminated")


def _failure(status: Mapping[str, Any]) -> str:
    told = [_told(status), *_failed_containers(status)]
    return "; ".join(part for part in told if part) or "the pod failed; the cluster gives no reason"


def _told(thing: Mapping[str, Any]) -> str | None:
    parts = [str(part) for part in (thing.get("reason"), thing.get("message")) if part]
    text = " ".join(": ".join(parts).split())
    return text[:_MESSAGE_LIMIT] or None


def _failed_containers(status: Mapping[str, Any]) -> Iterator[str]:
    groups: Sequence[tuple[str, str]] = (
        ("initContainerStatuses", "init container"),
        ("containerStatuses", "container"),
    )
    for key, what in groups:
        for container in status.get(key) or ():
            terminated = _terminated(container)
            if terminated and terminated.get("exitCode") != 0:
                yield f"{what} {container.get('name')}: {_how_it_terminated(terminated)}"


def _how_it_terminated(terminated: Mapping[str, Any]) -> str:
    code = terminated.get("exitCode")
    parts = [_told(terminated), f"exit code {code}" if code is not None else None]
    if signal := terminated.get("signal"):
        parts.append(f"signal {signal}")
    return ", ".join(part for part in parts if part) or "terminated"
