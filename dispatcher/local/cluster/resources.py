# SPDX-License-Identifier: Apache-2.0
"""The kinds that the cluster serves, and what is special about each."""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dispatcher.local.cluster import names, pods, shapes, status
from dispatcher.local.cluster.metadata import metadata_faults
from dispatcher.local.cluster.selectors import FieldPaths
from dispatcher.local.cluster.status import Cause
from dispatcher.local.cluster.store import Json

SECRET_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Resource:
    """One kind of object and how the API treats it.

    :param plural: name in paths.
    :param kind: name in objects.
    :param namespaced: whether its objects live in a namespace.
    :param verbs: what may be done with it.
    :param shape: JSON types of its fields.
    :param fields: what field selectors may name, beyond the name and the namespace.
    :param faults: says what is wrong with an object that is to be stored.
    :param prepare_create: completes a new object.
    :param prepare_update: takes over what an update may not change, and says what it must not change.
    :param prepare_status_update: takes over what a write of the status may not change; absent without status.
    """

    plural: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]
    shape: shapes.Shape
    fields: FieldPaths
    faults: Callable[[Json], list[Cause]]
    prepare_create: Callable[[Json], None]
    prepare_update: Callable[[Json, Json], list[Cause]]
    prepare_status_update: Callable[[Json, Json], None] | None = None

    @property
    def selectable(self) -> FieldPaths:
        """Return all fields that a field selector may name."""
        common = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}
        return {**common, **self.fields}

    def present(self, obj: Json) -> Json:
        """Return an object as the API shows it alone: with its kind and version."""
        return {"kind": self.kind, "apiVersion": "v1", **obj}


def _paths(*fields: str) -> FieldPaths:
    return {field: tuple(field.split(".")) for field in fields}


def _keep(_new: Json, _old: Json) -> list[Cause]:
    return []


def _secret_prepare_create(secret: Json) -> None:
    secret.setdefault("type", "Opaque")
    _encode_texts(secret)


def _secret_prepare_update(new: Json, old: Json) -> list[Cause]:
    new.setdefault("type", old["type"])
    _encode_texts(new)
    if new["type"] == old["type"]:
        return []
    return [status.wrong("type", new["type"], "field is immutable")]


def _encode_texts(secret: Json) -> None:
    texts = secret.pop("stringData", {})
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    if data := {**secret.get("data", {}), **encoded}:
        secret["data"] = data


def _secret_faults(secret: Json) -> list[Cause]:
    causes = metadata_faults(secret["metadata"], names.subdomain_faults)
    size = 0
    for key, value in secret.get("data", {}).items():
        causes += [status.wrong(f"data[{key}]", key, fault) for fault in names.data_key_faults(key)]
        try:
            size += len(base64.b64decode(value, validate=True))
        except binascii.Error as exc:
            message = 'Secret in version "v1" cannot be handled as a Secret: data: illegal base64'
            raise status.bad_request(message) from exc
    if size > SECRET_BYTES:
        causes.append(Cause("data", f"Too long: must have at most {SECRET_BYTES} bytes", "FieldValueTooLong"))
    return causes


def _namespace_faults(namespace: Json) -> list[Cause]:
    return metadata_faults(namespace["metadata"], names.dns_label_faults)


def _namespace_prepare_create(namespace: Json) -> None:
    namespace["spec"] = {"finalizers": ["kubernetes"]}
    namespace["status"] = {"phase": "Active"}


def _plain_faults(obj: Json) -> list[Cause]:
    return metadata_faults(obj["metadata"], names.subdomain_faults)


def _plain_prepare_create(_obj: Json) -> None:
    """Take the object as it is."""


def _keep_status(new: Json, old: Json) -> list[Cause]:
    new["spec"], new["status"] = copy.deepcopy(old["spec"]), copy.deepcopy(old["status"])
    return []


_ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

PODS = Resource(
    plural="pods",
    kind="Pod",
    namespaced=True,
    verbs=_ALL_VERBS,
    shape=shapes.POD,
    fields=_paths(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
    ),
    faults=pods.pod_faults,
    prepare_create=pods.prepare_create,
    prepare_update=pods.prepare_update,
    prepare_status_update=pods.prepare_status_update,
)
SECRETS = Resource(
    plural="secrets",
    kind="Secret",
    namespaced=True,
    verbs=_ALL_VERBS,
    shape=shapes.SECRET,
    fields=_paths("type"),
    faults=_secret_faults,
    prepare_create=_secret_prepare_create,
    prepare_update=_secret_prepare_update,
)
NAMESPACES = Resource(
    plural="namespaces",
    kind="Namespace",
    namespaced=False,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    shape=shapes.NAMESPACE,
    fields=_paths("status.phase"),
    faults=_namespace_faults,
    prepare_create=_namespace_prepare_create,
    prepare_update=_keep_status,
)
EVENTS = Resource(
    plural="events",
    kind="Event",
    namespaced=True,
    verbs=_ALL_VERBS,
    shape=shapes.EVENT,
    fields=_paths(
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "type",
    ),
    faults=_plain_faults,
    prepare_create=_plain_prepare_create,
    prepare_update=_keep,
)
NODES = Resource(
    plural="nodes",
    kind="Node",
    namespaced=False,
    verbs=("get", "list", "watch"),
    shape=shapes.NODE,
    fields={},
    faults=_plain_faults,
    prepare_create=_plain_prepare_create,
    prepare_update=_keep_status,
)

RESOURCES: Mapping[str, Resource] = {
    resource.plural: resource for resource in (EVENTS, NAMESPACES, NODES, PODS, SECRETS)
}
