# SPDX-License-Identifier: Apache-2.0
"""How objects go: pods in two steps with a grace period, what they own after them, the rest at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dispatcher.local.cluster import pods
from dispatcher.local.cluster.resources import NAMESPACES, PODS, RESOURCES, Resource
from dispatcher.local.cluster.store import Json, ObjectMissingError, Store, timestamp

_KINDS = {resource.kind: resource for resource in RESOURCES.values()}
_IN_NAMESPACES = [resource for resource in RESOURCES.values() if resource.namespaced]


@dataclass(frozen=True)
class Deletions:
    """Deletes objects, and collects what a deletion leaves behind.

    :param store: the objects.
    :param clock: tells the time, with a time zone.
    """

    store: Store
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def delete(self, resource: Resource, obj: Json, grace_seconds: int | None = None) -> tuple[Json, bool]:
        """Begin to delete an object, and finish where nothing has to be waited for.

        A pod that runs on a node is only marked: whoever runs it calls ``finish``. A finalizer holds the
        object too, until an update removes it.

        :param grace_seconds: time for a pod to end by itself; what its spec says when absent.
        :return: the object as marked, and whether it is gone.
        """
        metadata = obj["metadata"]
        if resource is NAMESPACES:
            return self._delete_namespace(obj), False
        grace = _grace_seconds(obj, grace_seconds) if resource is PODS else 0
        if resource is PODS or metadata.get("finalizers"):
            known = metadata.get("deletionGracePeriodSeconds", math.inf)
            if grace < known:
                moment = timestamp(self.clock() + timedelta(seconds=grace))
                metadata |= {"deletionTimestamp": moment, "deletionGracePeriodSeconds": grace}
                obj = self.store.update(resource.plural, obj)
        if grace > 0 or metadata.get("finalizers"):
            return obj, False
        self.store.remove(resource.plural, metadata.get("namespace", ""), metadata["name"])
        return obj, True

    def finish(self, resource: Resource, obj: Json) -> None:
        """Take a terminating object away, now that nothing holds it but perhaps a finalizer."""
        self.delete(resource, obj, grace_seconds=0)

    def collect(self) -> None:
        """Delete objects whose owners are gone, and empty namespaces that are being deleted."""
        self._collect_owned()
        for namespace in self.store.objects(NAMESPACES.plural):
            if "deletionTimestamp" in namespace["metadata"]:
                self._empty(namespace["metadata"]["name"])

    def _delete_namespace(self, namespace: Json) -> Json:
        if "deletionTimestamp" in namespace["metadata"]:
            return namespace
        namespace["metadata"]["deletionTimestamp"] = timestamp(self.clock())
        namespace["status"] = {"phase": "Terminating"}
        return self.store.update(NAMESPACES.plural, namespace)

    def _collect_owned(self) -> None:
        alive = {obj["metadata"]["uid"] for resource in RESOURCES for obj in self.store.objects(resource)}
        for resource in _IN_NAMESPACES:
            for obj in self.store.objects(resource.plural):
                if _owners_gone(obj, alive):
                    self._delete_again(resource, obj)

    def _empty(self, name: str) -> None:
        left = 0
        for resource in _IN_NAMESPACES:
            for obj in self.store.objects(resource.plural, name):
                self._delete_again(resource, obj)
            left += len(self.store.objects(resource.plural, name))
        if not left:
            self.store.remove(NAMESPACES.plural, "", name)

    def _delete_again(self, resource: Resource, obj: Json) -> None:
        if "deletionTimestamp" in obj["metadata"]:
            return
        try:
            current = self.store.get(resource.plural, obj["metadata"]["namespace"], obj["metadata"]["name"])
        except ObjectMissingError:
            return
        self.delete(resource, current)


def _grace_seconds(pod: Json, wanted: int | None) -> int:
    """Return how long the pod may take: no time where nothing runs."""
    if pods.is_finished(pod) or not pod["spec"].get("nodeName"):
        return 0
    grace: int = pod["spec"]["terminationGracePeriodSeconds"] if wanted is None else wanted
    return max(grace, 0)


def _owners_gone(obj: Json, alive: set[str]) -> bool:
    """Say whether the object has owners, all of kinds that the cluster knows, and none of them exists."""
    references = obj["metadata"].get("ownerReferences", [])
    return bool(references) and all(
        reference["apiVersion"] == "v1" and reference["kind"] in _KINDS and reference["uid"] not in alive
        for reference in references
    )
