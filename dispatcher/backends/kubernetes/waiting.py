# SPDX-License-Identifier: Apache-2.0
"""Pods that have not started: what each waits for, and when it is waited for no longer. Pure, on raw JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dispatcher.backends.base import Observation
from dispatcher.backends.kubernetes.diagnosis import BASE_CONTAINER, explain_waiting, say, waiting_containers
from dispatcher.backends.kubernetes.endings import is_terminating
from dispatcher.domain.pod_claimant import claimants_of_pod
from dispatcher.domain.workload import WorkloadKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dispatcher.backends.kubernetes.identity import PodIdentity

HOPELESS = frozenset({"InvalidImageName"})
"""No cluster can start such a pod, however often it is made."""

ALWAYS_FATAL = HOPELESS | {"ErrImageNeverPull"}
"""The kubelet that has the pod cannot get over these by trying again."""

_FOR_A_MOMENT = "pull QPS exceeded"
"""Message of an ErrImagePull that is only the kubelet's own limit of pulls per second."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps one container from starting.

    :param reason: the kubelet's word for it
    :param text: the whole, for people
    """

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that has not started.

    :param since: when it was created
    :param why: for people; None where the cluster gives no reason
    :param obstacles: what keeps its containers from starting
    """

    since: datetime
    why: str | None = None
    obstacles: tuple[Obstacle, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a pod that does not start is waited for.

    :param fatal: reasons of waiting containers that end it at once
    :param seconds: until a pod that does not start is given up, by kind; a kind that is not here is
        Airflow's own to give up
    """

    fatal: Collection[str]
    seconds: Mapping[WorkloadKind, float]


def read_waiting(pod: Mapping[str, Any]) -> Waiting | None:
    """Return what a pod waits for; None for one that has started, has ended, or is being deleted.

    :param pod: a pod as the API server tells it
    """
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "", "Pending") or is_terminating(pod) or _has_begun(status):
        return None
    obstacles = tuple(
        Obstacle(str(waiting["reason"]), f"{what} {name}: {say(waiting)}")
        for what, name, waiting in waiting_containers(status)
        if waiting.get("message") != _FOR_A_MOMENT
    )
    created = (pod.get("metadata") or {}).get("creationTimestamp")
    return Waiting(_time(created), explain_waiting(status), obstacles)


def give_up(identity: PodIdentity, waiting: Waiting, patience: Patience, now: datetime) -> Observation | None:
    """Return the observation of a pod that is waited for no longer; None while it is.

    :param identity: which pod
    :param waiting: what it waits for
    :param patience: how long
    :param now: the present
    """
    for obstacle in waiting.obstacles:
        if obstacle.reason in ALWAYS_FATAL or obstacle.reason in patience.fatal:
            return _given_up(identity, obstacle.text, by_infrastructure=obstacle.reason not in HOPELESS)
    limit = patience.seconds.get(identity.kind)
    if limit is None or (now - waiting.since).total_seconds() < limit:
        return None
    why = waiting.why or "the cluster gives no reason"
    return _given_up(identity, f"the pod did not start within {limit:g} s: {why}", by_infrastructure=True)


def _given_up(identity: PodIdentity, reason: str, *, by_infrastructure: bool) -> Observation:
    return Observation(
        token=identity.token,
        ok=False,
        reason=reason,
        hostname=identity.name,
        claimant=claimants_of_pod(identity.uid) if identity.uid else None,
        by_infrastructure=by_infrastructure,
        given_up=True,
    )


def _has_begun(status: Mapping[str, Any]) -> bool:
    """Whether ``base`` runs or ran: the phase is Pending as long as any sidecar waits."""
    for container in status.get("containerStatuses") or ():
        if container.get("name") == BASE_CONTAINER:
            state = container.get("state") or {}
            return bool(state.get("running") is not None or state.get("terminated"))
    return False


def _time(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.now(tz=UTC)
