# SPDX-License-Identifier: Apache-2.0
"""What is known of pods: which are ours to tell of, which exist, and how they ended.

A launch is one pod, but a person may have made another that carries its token. Each pod is known by its
place, namespace/name; whether endings are told is decided by token.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from dispatcher.backends.base import Artefact, Progress, Stray
from dispatcher.backends.kubernetes.endings import vanished
from dispatcher.backends.kubernetes.identity import PodIdentity, split_external_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from dispatcher.backends.base import Observation
    from dispatcher.backends.kubernetes.options import Scope
    from dispatcher.backends.kubernetes.waiting import Waiting


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod, or a place where one may be.

    :param identity: which pod; the uid is empty until the pod was seen
    :param confirmed: it is known to have existed
    :param exists: it existed when it was last looked at
    :param watched: a watch has shown this very pod
    :param secret: its workload travels in a Secret
    :param ending: how it ended
    :param waiting: what it waits for, as long as it has not started
    :param sender: job id of the scheduler that made it, as its label says
    :param leaving: its removal was asked for
    """

    identity: PodIdentity
    confirmed: bool = False
    exists: bool = False
    watched: bool = False
    secret: bool = False
    ending: Observation | None = None
    waiting: Waiting | None = None
    sender: str | None = None
    leaving: bool = False

    @property
    def alive(self) -> bool:
        """Whether it exists and has not ended, as far as is known."""
        return self.exists and self.ending is None

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        if self.ending is not None:
            return Progress.ENDED
        return Progress.RUNNING if self.waiting is None else Progress.WAITING


class PodTable:
    """Shared by the scheduler's loop, the threads that create pods, and the watchers.

    Pods of other schedulers are kept too, as long as they exist: an ending is known when its pod is taken up
    later.

    :param scope_of: from a namespace to the scope that shows its pods
    """

    def __init__(self, scope_of: Callable[[str], Scope]) -> None:
        self._scope_of = scope_of
        self._pods: dict[str, KnownPod] = {}
        self._places: dict[str, tuple[str, ...]] = {}
        self._tracked: set[str] = set()
        self._listed: dict[Scope, float] = {}
        self._lock = threading.Lock()

    def attempted(self, identity: PodIdentity, *, secret: bool) -> None:
        """Take note that a pod is about to be created: from now on it may be there, and its end is told."""
        with self._lock:
            self._tracked.add(identity.token)
            known = self._pods.get(identity.external_id)
            if known is None:
                self._put(KnownPod(identity, secret=secret))
            else:
                self._put(replace(known, secret=secret or known.secret))

    def looked_at(self, identity: PodIdentity, ending: Observation | None = None) -> None:
        """Take note of a pod that was created or read just now, ahead of what the watches show.

        What is known of an earlier pod of its name is void.

        :param ending: how it ended
        """
        with self._lock:
            known = self._pods.get(identity.external_id)
            if known is None:
                return
            if known.identity.uid == identity.uid:
                ending = known.ending or ending
                exists = known.exists or known.ending is None
                self._put(replace(known, confirmed=True, exists=exists, ending=ending))
            else:
                self._put(KnownPod(identity, confirmed=True, exists=True, secret=known.secret, ending=ending))

    def take_up(self, artefacts: Iterable[Artefact]) -> None:
        """Take note of artefacts that another scheduler sent."""
        with self._lock:
            for artefact in artefacts:
                self._tracked.add(artefact.token)
                if artefact.external_id is not None and artefact.external_id not in self._pods:
                    namespace, name = split_external_id(artefact.external_id)
                    identity = PodIdentity(artefact.token, artefact.kind, namespace, name, "")
                    self._put(KnownPod(identity, confirmed=True))

    def seen(
        self,
        identity: PodIdentity,
        ending: Observation | None,
        *,
        deleted: bool = False,
        secret: bool = False,
        waiting: Waiting | None = None,
        sender: str | None = None,
    ) -> None:
        """Take note of a pod as a list or a watch shows it.

        :param ending: how it ended
        :param deleted: this is the last that was seen of it
        :param secret: its workload travels in a Secret
        :param waiting: what it waits for
        :param sender: job id of the scheduler that made it
        """
        with self._lock:
            known = self._pods.get(identity.external_id)
            if known is not None and _is_older(identity, known, deleted=deleted):
                return
            if deleted and identity.token not in self._tracked:
                self._drop(identity.external_id)
                return
            same = known is not None and known.identity.uid == identity.uid
            if known is not None and same:
                ending = known.ending or ending
            self._put(
                KnownPod(
                    identity=identity,
                    confirmed=True,
                    exists=not deleted,
                    watched=True,
                    secret=secret or (known is not None and known.secret),
                    ending=ending,
                    waiting=waiting,
                    sender=sender,
                    leaving=known is not None and same and known.leaving,
                )
            )

    def existing(self, scope: Scope) -> dict[str, str]:
        """Return the pods of a scope that exist as far as is known: their uids by place."""
        with self._lock:
            return {
                place: pod.identity.uid
                for place, pod in self._pods.items()
                if pod.exists and self._scope_of(pod.identity.namespace) == scope
            }

    def listed(self, scope: Scope, before: dict[str, str], places: Collection[str], *, begun: float) -> None:
        """Take note of a complete list of a scope.

        :param before: what existed as far as was known before the list was asked for
        :param places: what the list showed
        :param begun: when it was asked for, in monotonic seconds
        """
        with self._lock:
            self._listed[scope] = begun
            for place, uid in before.items():
                known = self._pods.get(place)
                if place in places or known is None or known.identity.uid != uid:
                    continue
                if known.identity.token in self._tracked:
                    self._put(replace(known, exists=False))
                else:
                    self._drop(place)

    def missing(self) -> list[PodIdentity]:
        """Return the pods that existed, were not seen to end, and are not shown by their scope any more."""
        with self._lock:
            return [
                pod.identity
                for pod in self._pods.values()
                if pod.confirmed
                and not pod.exists
                and pod.ending is None
                and pod.identity.token in self._tracked
                and self._scope_of(pod.identity.namespace) in self._listed
            ]

    def unheard_of(self, tokens: Iterable[str]) -> set[str]:
        """Return those of ``tokens`` that no pod is known of.

        :param tokens: of launches
        """
        with self._lock:
            return {token for token in tokens if not any(pod.confirmed for pod in self._of(token))}

    def listed_since(self, scopes: Iterable[Scope]) -> float:
        """Return since when all of ``scopes`` were listed, in monotonic seconds; minus infinity for never.

        :param scopes: everywhere that there may be pods
        """
        with self._lock:
            return min((self._listed.get(scope, -math.inf) for scope in scopes), default=-math.inf)

    def gone(self, identity: PodIdentity) -> None:
        """Take note that the API server says that a missing pod does not exist."""
        with self._lock:
            known = self._pods.get(identity.external_id)
            if known is not None and known.identity == identity and not known.exists and known.ending is None:
                self._put(replace(known, ending=vanished(identity)))

    def endings(self, given_up: Mapping[str, Observation] = MappingProxyType({})) -> list[Observation]:
        """Return how the pods of the tracked tokens ended, and of those that are given up that they are.

        :param given_up: pods that are waited for no longer, by place: none of them outlives another
        """
        with self._lock:
            told: list[Observation] = []
            ended = {pod.identity.token for pod in self._pods.values() if pod.ending is not None}
            ended.update(observation.token for observation in given_up.values())
            for token in ended & self._tracked:
                pods = {pod.identity.external_id: pod for pod in self._of(token)}
                outlived = any(pod.alive and place not in given_up for place, pod in pods.items())
                over = [pod.ending or given_up.get(place) for place, pod in pods.items()]
                told += [replace(one, outlived=outlived) for one in over if one is not None]
            return told

    def not_started(self) -> list[tuple[PodIdentity, Waiting]]:
        """Return the tracked pods that exist and have not started, with what each waits for."""
        with self._lock:
            return [
                (pod.identity, pod.waiting)
                for pod in self._pods.values()
                if pod.alive and pod.waiting is not None and pod.identity.token in self._tracked
            ]

    def strays(self) -> list[Stray]:
        """Return the pods that exist although nobody here waits for them or takes them away."""
        with self._lock:
            return [
                Stray(
                    Artefact(pod.identity.token, pod.identity.kind, pod.identity.external_id),
                    pod.progress,
                    pod.sender,
                )
                for pod in self._pods.values()
                if pod.exists and pod.watched and not pod.leaving and pod.identity.token not in self._tracked
            ]

    def find(self, token: str) -> list[KnownPod]:
        """Return what is known of the pods of a token."""
        with self._lock:
            return self._of(token)

    def leaves(self, place: str) -> None:
        """Take note that the removal of a pod is asked for; another pod that comes to its place is new."""
        with self._lock:
            known = self._pods.get(place)
            if known is not None:
                self._put(replace(known, leaving=True))

    def forget(self, token: str) -> None:
        """Tell no more of a token."""
        with self._lock:
            self._tracked.discard(token)
            for pod in self._of(token):
                if not pod.exists:
                    self._drop(pod.identity.external_id)

    def _of(self, token: str) -> list[KnownPod]:
        return [self._pods[place] for place in self._places.get(token, ())]

    def _put(self, pod: KnownPod) -> None:
        place, token = pod.identity.external_id, pod.identity.token
        before = self._pods.get(place)
        if before is not None and before.identity.token != token:
            self._drop(place)
        self._pods[place] = pod
        places = self._places.get(token, ())
        if place not in places:
            self._places[token] = (*places, place)

    def _drop(self, place: str) -> None:
        known = self._pods.pop(place, None)
        if known is None:
            return
        token = known.identity.token
        left = tuple(other for other in self._places[token] if other != place)
        if left:
            self._places[token] = left
        else:
            del self._places[token]


def _is_older(identity: PodIdentity, known: KnownPod, *, deleted: bool) -> bool:
    """Whether a watch, which lags, tells of a pod that gave way to the one that is known."""
    if known.identity.uid in ("", identity.uid):
        return False
    return deleted or not known.watched
