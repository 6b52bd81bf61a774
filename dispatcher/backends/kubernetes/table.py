# SPDX-License-Identifier: Apache-2.0
"""What is known of pods, by token: which are ours to tell of, which exist, and how they ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dispatcher.backends.kubernetes.endings import vanished
from dispatcher.backends.kubernetes.identity import PodIdentity, split_external_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from dispatcher.backends.base import Artefact, Observation
    from dispatcher.backends.kubernetes.options import Scope
    from dispatcher.backends.kubernetes.waiting import Waiting


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod, or a place where one may be.

    :param identity: which pod; the uid is empty until the pod was seen
    :param tracked: its ending is to be told: it was sent or taken up by this backend
    :param confirmed: it is known to have existed
    :param exists: it existed when it was last looked at
    :param watched: a watch has shown this very pod
    :param secret: its workload travels in a Secret
    :param ending: how it ended
    :param waiting: what it waits for, as long as it has not started
    """

    identity: PodIdentity
    tracked: bool = False
    confirmed: bool = False
    exists: bool = False
    watched: bool = False
    secret: bool = False
    ending: Observation | None = None
    waiting: Waiting | None = None


class PodTable:
    """Shared by the scheduler's loop, the threads that create pods, and the watchers.

    Pods of other schedulers are kept too, as long as they exist: an ending is known when its pod is taken up
    later.

    :param scope_of: from a namespace to the scope that shows its pods
    """

    def __init__(self, scope_of: Callable[[str], Scope]) -> None:
        self._scope_of = scope_of
        self._pods: dict[str, KnownPod] = {}
        self._unplaced: set[str] = set()
        self._listed: set[Scope] = set()
        self._lock = threading.Lock()

    def attempted(self, identity: PodIdentity, *, secret: bool) -> None:
        """Take note that a pod is about to be created: from now on it may be there."""
        with self._lock:
            self._unplaced.discard(identity.token)
            known = self._pods.get(identity.token)
            if known is None:
                self._pods[identity.token] = KnownPod(identity, tracked=True, secret=secret)
            else:
                self._pods[identity.token] = replace(known, tracked=True, secret=secret or known.secret)

    def looked_at(self, identity: PodIdentity, ending: Observation | None = None) -> None:
        """Take note of a pod that was created or read just now, ahead of what the watches show.

        What is known of an earlier pod of its name is void.

        :param ending: how it ended
        """
        with self._lock:
            known = self._pods.get(identity.token)
            if known is None:
                return
            if known.identity.uid == identity.uid:
                ending = known.ending or ending
                exists = known.exists or known.ending is None
                known = replace(known, exists=exists, ending=ending)
            else:
                known = replace(known, identity=identity, exists=True, watched=False, ending=ending)
            self._pods[identity.token] = replace(known, confirmed=True)

    def take_up(self, artefacts: Iterable[Artefact]) -> None:
        """Take note of artefacts that another scheduler sent."""
        with self._lock:
            for artefact in artefacts:
                known = self._pods.get(artefact.token)
                if known is not None:
                    self._pods[artefact.token] = replace(known, tracked=True)
                elif artefact.external_id is not None:
                    namespace, name = split_external_id(artefact.external_id)
                    identity = PodIdentity(artefact.token, artefact.kind, namespace, name, "")
                    self._pods[artefact.token] = KnownPod(identity, tracked=True, confirmed=True)
                else:
                    self._unplaced.add(artefact.token)

    def seen(
        self,
        identity: PodIdentity,
        ending: Observation | None,
        *,
        deleted: bool = False,
        secret: bool = False,
        waiting: Waiting | None = None,
    ) -> None:
        """Take note of a pod as a list or a watch shows it.

        :param ending: how it ended
        :param deleted: this is the last that was seen of it
        :param secret: its workload travels in a Secret
        :param waiting: what it waits for
        """
        with self._lock:
            known = self._pods.get(identity.token)
            if known is not None and self._is_older(identity, known, deleted=deleted):
                return
            tracked = identity.token in self._unplaced or (known is not None and known.tracked)
            if deleted and not tracked:
                self._pods.pop(identity.token, None)
                return
            self._unplaced.discard(identity.token)
            if known is not None and known.ending is not None and known.identity.uid == identity.uid:
                ending = known.ending
            self._pods[identity.token] = KnownPod(
                identity=identity,
                tracked=tracked,
                confirmed=True,
                exists=not deleted,
                watched=True,
                secret=secret or (known is not None and known.secret),
                ending=ending,
                waiting=waiting,
            )

    @staticmethod
    def _is_older(identity: PodIdentity, known: KnownPod, *, deleted: bool) -> bool:
        """Whether a watch, which lags, tells of a pod that gave way to the one that is known."""
        if known.identity.uid in ("", identity.uid):
            return False
        return deleted or not known.watched

    def existing(self, scope: Scope) -> dict[str, str]:
        """Return the pods of a scope that exist as far as is known: their uids by token."""
        with self._lock:
            return {
                token: pod.identity.uid
                for token, pod in self._pods.items()
                if pod.exists and self._scope_of(pod.identity.namespace) == scope
            }

    def listed(self, scope: Scope, before: dict[str, str], tokens: Collection[str]) -> None:
        """Take note of a complete list of a scope.

        :param before: what existed as far as was known before the list was asked for
        :param tokens: what the list showed
        """
        with self._lock:
            self._listed.add(scope)
            for token, uid in before.items():
                known = self._pods.get(token)
                if token in tokens or known is None or known.identity.uid != uid:
                    continue
                if known.tracked:
                    self._pods[token] = replace(known, exists=False)
                else:
                    del self._pods[token]

    def missing(self) -> list[PodIdentity]:
        """Return the pods that existed, were not seen to end, and are not shown by their scope any more."""
        with self._lock:
            return [
                pod.identity
                for pod in self._pods.values()
                if pod.tracked
                and pod.confirmed
                and not pod.exists
                and pod.ending is None
                and self._scope_of(pod.identity.namespace) in self._listed
            ]

    def gone(self, identity: PodIdentity) -> None:
        """Take note that the API server says that a missing pod does not exist."""
        with self._lock:
            known = self._pods.get(identity.token)
            if known is not None and known.identity == identity and not known.exists and known.ending is None:
                self._pods[identity.token] = replace(known, ending=vanished(identity))

    def endings(self) -> list[Observation]:
        """Return how the tracked pods ended."""
        with self._lock:
            return [pod.ending for pod in self._pods.values() if pod.tracked and pod.ending is not None]

    def not_started(self) -> list[tuple[PodIdentity, Waiting]]:
        """Return the tracked pods that exist and have not started, with what each waits for."""
        with self._lock:
            return [
                (pod.identity, pod.waiting)
                for pod in self._pods.values()
                if pod.tracked and pod.exists and pod.ending is None and pod.waiting is not None
            ]

    def find(self, token: str) -> KnownPod | None:
        """Return what is known of a token's pod."""
        with self._lock:
            return self._pods.get(token)

    def forget(self, token: str) -> None:
        """Tell no more of a token."""
        with self._lock:
            self._unplaced.discard(token)
            known = self._pods.get(token)
            if known is None:
                return
            if known.exists:
                self._pods[token] = replace(known, tracked=False)
            else:
                del self._pods[token]
