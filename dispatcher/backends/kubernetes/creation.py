# SPDX-License-Identifier: Apache-2.0
"""Creating one pod, idempotently: its name ends with the launch token, so it can only be there once (rule 6).

The Secret of a workload is made after its pod, so that it can belong to it: the kubelet waits for it, and the
garbage collector takes it away with the pod. If its creation fails, sending the token again finds the pod and
makes up for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dispatcher.backends.base import Outcome, Postponed, Rejected, Sent
from dispatcher.backends.kubernetes.endings import classify_pod, is_terminating
from dispatcher.backends.kubernetes.errors import AlreadyExistsError, BusyError
from dispatcher.backends.kubernetes.identity import PodIdentity, read_identity
from dispatcher.domain.errors import AmbiguousError, BackendError, PermanentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dispatcher.backends.kubernetes.client import Cluster
    from dispatcher.backends.kubernetes.pods import BuiltPod
    from dispatcher.backends.kubernetes.table import PodTable

log = logging.getLogger(__name__)


class PodCreator:
    """Creates pods; may be used by several threads.

    :param cluster: where
    :param table: learns what became of each
    :param delete_options: for pods that have to be taken back
    :param retries: how often a creation that failed for now may be tried again; None for always
    :param pause: told for how many seconds the API server wants no creation at all
    """

    def __init__(
        self,
        cluster: Cluster,
        table: PodTable,
        delete_options: Mapping[str, Any],
        *,
        retries: int | None,
        pause: Callable[[float], None],
    ) -> None:
        self._cluster = cluster
        self._table = table
        self._delete_options = delete_options
        self._retries = retries
        self._pause = pause

    def create(self, pod: BuiltPod, attempts: int = 0) -> Outcome:
        """Make sure that a pod is there, and say whether it is; never raises a ``BackendError``.

        :param pod: what to create
        :param attempts: creations of it that failed before
        """
        self._table.attempted(pod.identity, secret=pod.secret is not None)
        try:
            return self._create(pod)
        except PermanentError as exc:
            self._table.forget(pod.token)
            return Rejected(str(exc))
        except BackendError as exc:
            return self._failed_for_now(exc, attempts)

    def _failed_for_now(self, exc: BackendError, attempts: int) -> Postponed | Rejected:
        # A server that asks for a pause of nothing gets the usual back-off.
        pause = exc.retry_after or None
        if pause is not None and isinstance(exc, BusyError):
            self._pause(pause)
        if self._retries is not None and attempts >= self._retries:
            limit = f"[kubernetes_executor] task_publish_max_retries = {self._retries}"
            return Rejected(f"{exc}; not tried again: {limit}")
        return Postponed(str(exc), pause, ambiguous=isinstance(exc, AmbiguousError))

    def _create(self, pod: BuiltPod) -> Outcome:
        try:
            created = self._cluster.create_pod(pod.namespace, pod.body)
        except AlreadyExistsError:
            return self._already_there(pod)
        self._table.looked_at(_identity_of(pod, created))
        self._deliver(pod, created)
        return Sent(pod.external_id)

    def _already_there(self, pod: BuiltPod) -> Outcome:
        """Judge the pod that has the name: only one that can still run is what was asked for.

        A pod that has ended is told by ``observe``, from this very look: to say that it was sent would be
        wrong, and so would be to make another.
        """
        found = self._cluster.read_pod(pod.namespace, pod.name)
        if found is None:
            return Postponed("the pod of this launch was deleted a moment ago")
        identity = read_identity(found)
        if identity is None or identity.token != pod.token:
            raise PermanentError(f"another pod has the name {pod.external_id}")
        ending = classify_pod(found)
        self._table.looked_at(identity, ending)
        if ending is not None:
            return Postponed("the pod of this launch has ended already", ambiguous=True)
        if is_terminating(found):
            return Postponed("the pod of this launch is being deleted", ambiguous=True)
        self._deliver(pod, found)
        return Sent(pod.external_id)

    def _deliver(self, pod: BuiltPod, created: Mapping[str, Any]) -> None:
        if pod.secret is None:
            return
        try:
            self._cluster.put_secret(created, pod.secret, created["metadata"].get("labels") or {})
        except PermanentError as exc:
            self._take_back(pod)
            raise PermanentError(f"the Secret with the workload cannot be made: {exc}") from exc

    def _take_back(self, pod: BuiltPod) -> None:
        """Delete a pod that can never start, because its workload cannot be delivered."""
        try:
            self._cluster.delete_pod(pod.namespace, pod.name, self._delete_options)
        except BackendError as exc:
            log.warning("Pod %s cannot be deleted: %s", pod.external_id, exc)


def _identity_of(pod: BuiltPod, created: Mapping[str, Any]) -> PodIdentity:
    identity = read_identity(created)
    if identity is None or identity.token != pod.token:
        raise PermanentError(f"the cluster changed the annotations of pod {pod.external_id}")
    return identity
