# SPDX-License-Identifier: Apache-2.0
"""The verbs of the API on stored objects, without HTTP."""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dispatcher.local.cluster import patches, shapes, status
from dispatcher.local.cluster.deletion import Deletions
from dispatcher.local.cluster.listing import ListQuery, list_objects
from dispatcher.local.cluster.resources import NAMESPACES, Resource
from dispatcher.local.cluster.store import (
    Json,
    ObjectExistsError,
    ObjectMissingError,
    Store,
    VersionConflictError,
)

OBJECT_BYTES = 1536 * 1024
"""What the database of a real cluster takes as one object."""

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_LETTERS = 5
_GENERATE_NAME_LENGTH = 58
_GIVEN_BY_CLUSTER = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "resourceVersion",
)


@dataclass(frozen=True)
class DeleteOptions:
    """What a deletion is asked for.

    :param grace_seconds: time for a pod to end by itself; what its spec says when absent.
    :param uid: the uid that the object must have; any when absent.
    :param version: the ``resourceVersion`` that it must have; any when absent.
    """

    grace_seconds: int | None = None
    uid: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Objects:
    """Creates, reads, changes and deletes objects as the API does.

    Every method answers with the JSON of the response, and raises ``ApiError`` where the API refuses.

    :param store: the objects.
    :param deletions: takes them away.
    """

    store: Store
    deletions: Deletions

    def create(self, resource: Resource, namespace: str, body: Any, *, dry_run: bool = False) -> Json:
        """Store a new object.

        :param namespace: of the path; empty for objects without one.
        :param dry_run: check and complete it, but store nothing.
        """
        obj = _decode(resource, body)
        metadata = obj["metadata"]
        if metadata.pop("resourceVersion", None):
            raise status.internal("resourceVersion should not be set on objects to be created")
        for name in _GIVEN_BY_CLUSTER:
            if name != "generateName":
                metadata.pop(name, None)
        _place(metadata, namespace, resource)
        _generate_name(metadata)
        if resource.namespaced:
            self._require_open_namespace(resource, namespace, metadata.get("name", ""))
        resource.prepare_create(obj)
        _check(resource, obj, [])
        if dry_run:
            return resource.present(obj)
        try:
            return resource.present(self.store.create(resource.plural, obj))
        except ObjectExistsError as exc:
            terminating = "deletionTimestamp" in exc.existing["metadata"]
            raise status.already_exists(resource.plural, metadata["name"], terminating=terminating) from exc

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Return one object."""
        return resource.present(self._existing(resource, namespace, name))

    def list(self, resource: Resource, query: ListQuery) -> Json:
        """Return a list, or a chunk of one."""
        return list_objects(self.store, resource, query)

    def replace(
        self, resource: Resource, namespace: str, name: str, body: Any, *, of_status: bool = False
    ) -> Json:
        """Replace an object, or with ``of_status`` its status."""
        old = self._existing(resource, namespace, name)
        new = _decode(resource, body)
        _place(new["metadata"], namespace, resource)
        wanted, found = new["metadata"].get("uid"), old["metadata"]["uid"]
        if wanted not in {None, found}:
            raise status.precondition_failed(resource.plural, name, "UID", wanted, found)
        return self._write(resource, old, new, of_status=of_status)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        content_type: str,
        body: Any,
        *,
        of_status: bool = False,
    ) -> Json:
        """Patch an object, or with ``of_status`` its status.

        :param content_type: which kind of patch ``body`` is.
        """
        old = self._existing(resource, namespace, name)
        patched = patches.apply(content_type, resource.present(old), body)
        try:
            new = shapes.decode(patched, resource.kind, resource.shape)
        except shapes.ShapeError as exc:
            raise status.invalid("", "", [status.wrong("patch", body, str(exc))]) from exc
        _place(new["metadata"], namespace, resource)
        uid = new["metadata"].get("uid")
        if uid not in {None, old["metadata"]["uid"]}:
            cause = status.wrong("metadata.uid", uid, "field is immutable")
            raise status.invalid(resource.kind, name, [cause])
        return self._write(resource, old, new, of_status=of_status)

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions) -> Json:
        """Delete one object, or begin to."""
        obj = self._existing(resource, namespace, name)
        metadata = obj["metadata"]
        if options.uid not in {None, metadata["uid"]}:
            raise status.precondition_failed(resource.kind, name, "UID", str(options.uid), metadata["uid"])
        if options.version not in {None, metadata["resourceVersion"]}:
            raise status.precondition_failed(
                resource.kind, name, "ResourceVersion", str(options.version), metadata["resourceVersion"]
            )
        marked, gone = self.deletions.delete(resource, obj, options.grace_seconds)
        if gone and resource.prepare_status_update is None:
            return status.deleted(resource.plural, marked)
        return resource.present(marked)

    def delete_collection(self, resource: Resource, query: ListQuery, options: DeleteOptions) -> Json:
        """Delete every object that the query finds, and return the list of them."""
        found = list_objects(self.store, resource, query)
        for obj in copy.deepcopy(found["items"]):
            self.deletions.delete(resource, obj, options.grace_seconds)
        return found

    def _existing(self, resource: Resource, namespace: str, name: str) -> Json:
        try:
            return self.store.get(resource.plural, namespace, name)
        except ObjectMissingError as exc:
            raise status.not_found(resource.plural, name) from exc

    def _require_open_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        found = self._existing(NAMESPACES, "", namespace)
        if "deletionTimestamp" in found["metadata"]:
            cause = status.Cause(
                "metadata.namespace", f"namespace {namespace} is being terminated", "NamespaceTerminating"
            )
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise status.forbidden(resource.plural, name, message, cause)

    def _write(self, resource: Resource, old: Json, new: Json, *, of_status: bool) -> Json:
        name = old["metadata"]["name"]
        if new["metadata"].get("name") != name:
            given = new["metadata"].get("name", "")
            message = f"the name of the object ({given}) does not match the name on the URL ({name})"
            raise status.bad_request(message)
        expected = new["metadata"].pop("resourceVersion", None)
        for field in _GIVEN_BY_CLUSTER:
            new["metadata"].pop(field, None)
            if field in old["metadata"]:
                new["metadata"][field] = old["metadata"][field]
        causes: list[status.Cause] = []
        if not of_status:
            causes = resource.prepare_update(new, old)
        elif resource.prepare_status_update is not None:
            resource.prepare_status_update(new, old)
        _check(resource, new, causes)
        with _conflicts(resource, name):
            stored = self.store.update(resource.plural, new, expected=expected)
        if _was_held_by_finalizers(old, stored):
            self.deletions.finish(resource, stored)
        return resource.present(stored)


def _decode(resource: Resource, body: Any) -> Json:
    try:
        return shapes.decode(body, resource.kind, resource.shape)
    except shapes.ShapeError as exc:
        raise status.bad_request(str(exc)) from exc


def _place(metadata: Json, namespace: str, resource: Resource) -> None:
    """Put the object into the namespace of the path."""
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return
    if metadata.setdefault("namespace", namespace) != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _generate_name(metadata: Json) -> None:
    if not metadata.get("name") and (prefix := metadata.get("generateName")):
        letters = "".join(secrets.choice(_NAME_LETTERS) for _ in range(_GENERATED_LETTERS))
        metadata["name"] = prefix[:_GENERATE_NAME_LENGTH] + letters


def _check(resource: Resource, obj: Json, causes: list[status.Cause]) -> None:
    causes = [*causes, *resource.faults(obj)]
    if causes:
        raise status.invalid(resource.kind, obj["metadata"].get("name", ""), causes)
    if len(json.dumps(obj)) > OBJECT_BYTES:
        raise status.object_too_large()


def _was_held_by_finalizers(old: Json, new: Json) -> bool:
    return (
        new["metadata"].get("deletionGracePeriodSeconds") == 0
        and bool(old["metadata"].get("finalizers"))
        and not new["metadata"].get("finalizers")
    )


@contextmanager
def _conflicts(resource: Resource, name: str) -> Iterator[None]:
    try:
        yield
    except VersionConflictError as exc:
        raise status.modified_meanwhile(resource.plural, name) from exc
