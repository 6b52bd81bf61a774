# SPDX-License-Identifier: Apache-2.0
"""JSON types of the fields that the cluster reads: a wrong one is refused before anything looks at its value.

A shape is a Python type for a scalar, a list with one shape for a list, a dict of shapes for an object,
``TEXT_MAP`` for a map of texts, or ``QUANTITIES`` for a map of amounts. Fields that no shape names are let
through.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from dispatcher.local.cluster.store import Json

Shape: TypeAlias = Any
TEXT_MAP: Shape = "map of texts"
QUANTITIES: Shape = "map of quantities"

METADATA: Shape = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "labels": TEXT_MAP,
    "annotations": TEXT_MAP,
    "finalizers": [str],
    "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str}],
}

_KEY_REFERENCE: Shape = {"name": str, "key": str, "optional": bool}
_CONTAINER: Shape = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "workingDir": str,
    "env": [
        {
            "name": str,
            "value": str,
            "valueFrom": {"secretKeyRef": _KEY_REFERENCE, "fieldRef": {"fieldPath": str}},
        }
    ],
    "envFrom": [{"prefix": str, "secretRef": {"name": str, "optional": bool}}],
    "resources": {"limits": QUANTITIES, "requests": QUANTITIES},
    "volumeMounts": [{"name": str, "mountPath": str, "subPath": str, "readOnly": bool}],
}
_VOLUME: Shape = {
    "name": str,
    "secret": {"secretName": str, "optional": bool, "items": [{"key": str, "path": str}]},
    "emptyDir": dict,
    "hostPath": {"path": str},
}

POD: Shape = {
    "metadata": METADATA,
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [_VOLUME],
        "restartPolicy": str,
        "nodeName": str,
        "schedulerName": str,
        "activeDeadlineSeconds": int,
        "terminationGracePeriodSeconds": int,
    },
    "status": {"phase": str, "conditions": [dict], "containerStatuses": [dict]},
}
SECRET: Shape = {"metadata": METADATA, "type": str, "data": TEXT_MAP, "stringData": TEXT_MAP}
NAMESPACE: Shape = {"metadata": METADATA, "spec": dict, "status": {"phase": str}}
EVENT: Shape = {"metadata": METADATA, "involvedObject": dict, "reason": str, "message": str, "type": str}
NODE: Shape = {"metadata": METADATA, "spec": dict, "status": dict}

_DROPPED_WHEN_EMPTY = {"annotations", "finalizers", "labels", "ownerReferences", "resourceVersion", "uid"}
_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
_JSON_NAMES = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object"}


class ShapeError(ValueError):
    """JSON that is no object of the kind."""


def decode(body: Any, kind: str, shape: Shape) -> Json:
    """Return a copy of a request's object without null fields.

    :raises ShapeError: it is of another kind or version, or a field has the wrong JSON type.
    """
    if not isinstance(body, dict):
        raise ShapeError(f"the object provided is unrecognized (must be of type {kind})")
    found_kind, found_version = body.get("kind") or kind, body.get("apiVersion") or "v1"
    if (found_kind, found_version) != (kind, "v1"):
        raise ShapeError(f'{found_kind} in version "{found_version}" cannot be handled as a {kind}')
    try:
        decoded = _convert(body, shape, "")
    except TypeError as exc:
        raise ShapeError(f'{kind} in version "v1" cannot be handled as a {kind}: {exc}') from exc
    obj: Json = {name: value for name, value in decoded.items() if name not in {"kind", "apiVersion"}}
    metadata = obj.setdefault("metadata", {})
    for name in _DROPPED_WHEN_EMPTY & metadata.keys():
        if not metadata[name]:
            del metadata[name]
    return obj


def _convert(value: Any, shape: Shape, path: str) -> Any:
    if shape is TEXT_MAP:
        return {name: _text(text, f"{path}.{name}") for name, text in _typed(value, dict, path).items()}
    if shape is QUANTITIES:
        return {
            name: _quantity(amount, f"{path}.{name}") for name, amount in _typed(value, dict, path).items()
        }
    if isinstance(shape, dict):
        found = {}
        for name, part in _typed(value, dict, path).items():
            if part is not None:
                inner = f"{path}.{name}".lstrip(".")
                found[name] = _convert(part, shape[name], inner) if name in shape else part
        return found
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise TypeError(f"{path}: expected a list")
        return [_convert(item, shape[0], f"{path}[{number}]") for number, item in enumerate(value)]
    return _typed(value, shape, path)


def _text(value: Any, path: str) -> str:
    text: str = _typed("" if value is None else value, str, path)
    return text


def _quantity(value: Any, path: str) -> Any:
    if not _QUANTITY.fullmatch(str(value)):
        raise TypeError(f"{path}: quantities must match the regular expression '{_QUANTITY.pattern}'")
    return value


def _typed(value: Any, wanted: type, path: str) -> Any:
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise TypeError(f"{path}: expected {_JSON_NAMES[wanted]}")
    return value
