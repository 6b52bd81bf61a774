# SPDX-License-Identifier: Apache-2.0
"""The objects of the cluster, in memory: one version counter, and a bounded history per resource.

Pure: no HTTP, no processes, no knowledge of what an object means beyond its ``metadata``. Objects are plain
JSON. What a caller hands in is copied; what ``objects`` and ``changes`` give back is the store's own and only
read.
"""

from __future__ import annotations

import copy
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]
ChangeType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]
Key: TypeAlias = tuple[str, str]
"""Namespace (empty for objects without one) and name: the order of lists."""


class StoreError(Exception):
    """A call that the store refuses."""


class ObjectExistsError(StoreError):
    """There is an object of this name; ``existing`` holds it."""

    def __init__(self, existing: Json) -> None:
        super().__init__(existing["metadata"]["name"])
        self.existing = existing


class ObjectMissingError(StoreError):
    """There is no object of this name."""


class VersionConflictError(StoreError):
    """The object changed since the version that the caller expects."""


class VersionExpiredError(StoreError):
    """The history no longer reaches back to this version; ``oldest`` is the first that it reaches."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"oldest version: {oldest}")
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object.

    :param version: the cluster's version counter after it; also the ``resourceVersion`` of ``object``.
    :param type: what happened.
    :param object: the object after the change; of a deletion, its last state.
    :param previous: the object before the change; of a creation, nothing.
    """

    version: int
    type: ChangeType
    object: Json
    previous: Json | None


def timestamp(moment: datetime) -> str:
    """Write a moment as Kubernetes does: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(obj: Json) -> Key:
    """Return what an object is stored under."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Store:
    """Objects by resource, namespace and name.

    :param history: changes kept per resource.
    :param clock: tells the time, with a time zone.
    :param on_change: called after every change.
    """

    def __init__(
        self,
        *,
        history: int = 2000,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._history_limit = history
        self._clock = clock
        self._on_change = on_change
        self._version = 0
        self._objects: dict[str, dict[Key, Json]] = {}
        self._history: dict[str, deque[Change]] = {}
        self._forgotten: dict[str, int] = {}

    @property
    def version(self) -> int:
        """Return the version of the last change of any object."""
        return self._version

    def now(self) -> str:
        """Return the present moment as a timestamp."""
        return timestamp(self._clock())

    def create(self, resource: str, obj: Json) -> Json:
        """Add an object; uid, creation time and version are given here. Returns a copy of it.

        :raises ObjectExistsError: the name is taken.
        """
        key = key_of(obj)
        existing = self._objects.get(resource, {}).get(key)
        if existing is not None:
            raise ObjectExistsError(copy.deepcopy(existing))
        stored = copy.deepcopy(obj)
        stored["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.now()}
        self._record(resource, "ADDED", key, stored, None)
        return copy.deepcopy(stored)

    def get(self, resource: str, namespace: str, name: str) -> Json:
        """Return a copy of an object.

        :raises ObjectMissingError: there is none.
        """
        return copy.deepcopy(self._existing(resource, (namespace, name)))

    def update(self, resource: str, obj: Json, *, expected: str | None = None) -> Json:
        """Replace an object and return a copy of it; a replacement without a difference changes nothing.

        :param expected: ``resourceVersion`` that the object must have; any when absent.
        :raises ObjectMissingError: there is none.
        :raises VersionConflictError: it has another version than expected.
        """
        key = key_of(obj)
        previous = self._existing(resource, key)
        version = previous["metadata"]["resourceVersion"]
        if expected is not None and expected != version:
            raise VersionConflictError(f"expected {expected}, found {version}")
        stored = copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = version
        if stored != previous:
            self._record(resource, "MODIFIED", key, stored, previous)
        return copy.deepcopy(stored)

    def remove(self, resource: str, namespace: str, name: str) -> Json:
        """Take an object away and return its last state, with the version of the deletion.

        :raises ObjectMissingError: there is none.
        """
        key = (namespace, name)
        previous = self._existing(resource, key)
        last = copy.deepcopy(previous)
        self._record(resource, "DELETED", key, last, previous)
        return copy.deepcopy(last)

    def objects(self, resource: str, namespace: str | None = None) -> list[Json]:
        """Return the objects of a resource in the order of their keys, to be read only.

        :param namespace: only these; of all namespaces when absent.
        """
        found = self._objects.get(resource, {})
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def objects_at(self, resource: str, namespace: str | None, version: int) -> list[Json]:
        """Return what ``objects`` gave right after the change with this version.

        :raises VersionExpiredError: the history does not reach back that far.
        """
        found = dict(self._objects.get(resource, {}))
        for change in reversed(self.changes(resource, after=version)):
            if change.previous is None:
                del found[key_of(change.object)]
            else:
                found[key_of(change.object)] = change.previous
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def changes(self, resource: str, *, after: int) -> list[Change]:
        """Return the changes of a resource that came after a version, oldest first, to be read only.

        :raises VersionExpiredError: some of them are forgotten.
        """
        oldest = self._forgotten.get(resource, 0)
        if after < oldest:
            raise VersionExpiredError(oldest)
        newest_first = []
        for change in reversed(self._history.get(resource, ())):
            if change.version <= after:
                break
            newest_first.append(change)
        return newest_first[::-1]

    def _existing(self, resource: str, key: Key) -> Json:
        try:
            return self._objects[resource][key]
        except KeyError as exc:
            raise ObjectMissingError(f"{resource} {key}") from exc

    def _record(self, resource: str, kind: ChangeType, key: Key, obj: Json, previous: Json | None) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        objects = self._objects.setdefault(resource, {})
        if kind == "DELETED":
            del objects[key]
        else:
            objects[key] = obj
        history = self._history.setdefault(resource, deque())
        history.append(Change(self._version, kind, obj, previous))
        if len(history) > self._history_limit:
            self._forgotten[resource] = history.popleft().version
        self._on_change()
