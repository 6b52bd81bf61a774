# SPDX-License-Identifier: Apache-2.0
"""From a pod as the API server shows it to an observation: pure, on raw JSON.

The container ``base`` decides. Pods of ours are never restarted, so once it has terminated the workload has
ended, whatever a sidecar still does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.backends.base import Observation
from dispatcher.backends.kubernetes.diagnosis import BASE_CONTAINER, explain_failure
from dispatcher.backends.kubernetes.identity import PodIdentity, read_identity
from dispatcher.domain.pod_claimant import claimants_of_pod
from dispatcher.domain.wire import EXIT_EXPIRED

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN_REASONS = frozenset({None, "", "Completed", "Error"})
"""What a kubelet says of a container whose process has run and exited; anything else is of its own doing."""

_KILLED = frozenset({137, 143})
"""Exit codes of a process that was ended by SIGKILL or SIGTERM: nobody sends these to itself."""

_NO_FAULT_OF_ITS_OWN = _KILLED | {EXIT_EXPIRED}
"""Exit codes that are no fault of the workload: another pod may fare better."""

_OWN_DEADLINE = "DeadlineExceeded"
"""The pod's own ``activeDeadlineSeconds``: another pod of the same kind would have the same."""


class _Ending(NamedTuple):
    ok: bool
    by_infrastructure: bool = False


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
    ending = _ending(status, deletion=is_terminating(pod))
    if ending is None:
        certainly_gone = deleted and is_terminating(pod)
        return _gone(identity, _before_its_end(status)) if certainly_gone else None
    return Observation(
        token=identity.token,
        ok=ending.ok,
        reason=None if ending.ok else explain_failure(status),
        hostname=identity.name,
        claimant=claimants_of_pod(identity.uid),
        by_infrastructure=ending.by_infrastructure,
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
        by_infrastructure=True,
    )


def _before_its_end(status: Mapping[str, Any]) -> str:
    phase = str(status.get("phase") or "").lower()
    return f"deleted while {phase}" if phase in ("pending", "running") else "deleted before it ended"


def _ending(status: Mapping[str, Any], *, deletion: bool) -> _Ending | None:
    terminated = _terminated_base(status)
    phase = status.get("phase")
    ended_by_cluster = phase == "Failed" and status.get("reason")
    if terminated is not None:
        if terminated.get("exitCode") == 0 and not ended_by_cluster:
            return _Ending(ok=True)
        return _Ending(ok=False, by_infrastructure=_by_infrastructure(status, terminated, deletion=deletion))
    if phase == "Succeeded":
        return _Ending(ok=True)
    if phase == "Failed":
        return _Ending(ok=False, by_infrastructure=_by_infrastructure(status, None, deletion=deletion))
    return None


def _by_infrastructure(
    status: Mapping[str, Any], terminated: Mapping[str, Any] | None, *, deletion: bool
) -> bool:
    """Whether something other than the process of ``base`` itself ended the pod, or kept it from starting."""
    if status.get("reason"):
        return bool(status["reason"] != _OWN_DEADLINE)
    if terminated is None or deletion or _is_disrupted(status):
        return True
    if terminated.get("reason") not in _OWN_REASONS:
        return True
    return bool(terminated.get("signal")) or terminated.get("exitCode") in _NO_FAULT_OF_ITS_OWN


def _is_disrupted(status: Mapping[str, Any]) -> bool:
    """Whether the cluster says that it ended the pod: eviction, preemption, a lost node."""
    return any(
        condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )


def _terminated_base(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how the container ``base`` terminated; None while it has not.

    :param status: of a pod
    """
    for container in status.get("containerStatuses") or ():
        if container.get("name") == BASE_CONTAINER:
            return (container.get("state") or {}).get("terminated")
    return None
