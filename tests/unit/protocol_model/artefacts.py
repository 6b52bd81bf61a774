# SPDX-License-Identifier: Apache-2.0
"""The backends of the model: a queue that may deliver twice, and a cluster that knows pods by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from dispatcher.backends.base import Observation
from dispatcher.domain.pod_claimant import claimants_of_pod

if TYPE_CHECKING:
    from collections.abc import Collection


class SendAnswer(StrEnum):
    """What the scheduler learns of one send."""

    SENT = "sent"
    POSTPONED = "postponed"


@dataclass(slots=True)
class Broker:
    """Celery's queue and its stored results.

    :param ready: tokens of the messages that wait; one may be there several times
    :param known: every token that was ever a message
    """

    ready: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    results: dict[str, Observation] = field(default_factory=dict)

    def send(self, token: str) -> SendAnswer:
        """Put a message into the queue."""
        self.ready.append(token)
        if token not in self.known:
            self.known.append(token)
        return SendAnswer.SENT

    def observe(self) -> list[Observation]:
        """Return the stored results."""
        return list(self.results.values())

    def revoke(self, token: str) -> None:
        """Ask the workers to drop it: they forget at once, which is the worst that they may do (C6)."""

    def remove(self, token: str) -> None:
        """Delete the stored result."""
        self.results.pop(token, None)


@dataclass(slots=True)
class Pod:
    """One pod.

    :param uid: new for each pod, also for one that is created again under the same name
    :param starts: how often its container was started
    """

    token: str
    uid: str
    starts: int = 0
    ending: Observation | None = None


@dataclass(slots=True)
class Cluster:
    """The pods, by name (that is, by token), and what a watch tells of those that went away."""

    pods: dict[str, Pod] = field(default_factory=dict)
    vanished: dict[str, Observation] = field(default_factory=dict)
    created: int = 0

    def send(self, token: str) -> SendAnswer:
        """Create a pod; one that is there already is success only if it has not ended (rule 6)."""
        pod = self.pods.get(token)
        if pod is None:
            self.created += 1
            self.pods[token] = Pod(token, f"uid{self.created}")
            self.vanished.pop(token, None)
            return SendAnswer.SENT
        return SendAnswer.SENT if pod.ending is None else SendAnswer.POSTPONED

    def end(self, token: str, uid: str, *, ok: bool, reason: str | None = None) -> None:
        """Let the container of one pod end."""
        pod = self.pods.get(token)
        if pod is not None and pod.uid == uid and pod.ending is None:
            claimant = None if ok else claimants_of_pod(uid)
            pod.ending = Observation(token=token, ok=ok, reason=reason, claimant=claimant)

    def delete(self, token: str) -> None:
        """Take a pod away, whatever it does."""
        pod = self.pods.pop(token, None)
        if pod is not None:
            self.vanished[token] = pod.ending or Observation(
                token=token, ok=False, reason="deleted", claimant=claimants_of_pod(pod.uid), gone=True
            )

    def observe(self) -> list[Observation]:
        """Return the endings of pods that are there, and of those that went away."""
        ended = [pod.ending for pod in self.pods.values() if pod.ending is not None]
        return [*ended, *self.vanished.values()]

    def revoke(self, token: str) -> None:
        """Delete the pod."""
        self.delete(token)

    def remove(self, token: str) -> None:
        """Delete the pod, and forget that it was there."""
        self.delete(token)
        self.vanished.pop(token, None)


def about(observations: Collection[Observation], tokens: Collection[str]) -> list[Observation]:
    """Return the observations about certain tokens."""
    return [one for one in observations if one.token in tokens]
