# SPDX-License-Identifier: Apache-2.0
"""The kinds of patch: merge (RFC 7386), strategic merge as far as pods need it, JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from dispatcher.local.cluster import status
from dispatcher.local.cluster.store import Json

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

# Lists that a strategic merge patch merges item by item, and the field that names an item.
_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def apply(content_type: str, obj: Json, patch: Any) -> Json:
    """Return a patched copy of an object.

    :param content_type: which kind of patch it is, without parameters.
    :raises ApiError: 415, no such kind; 400, not a patch of this kind; 422, it does not fit the object.
    """
    if content_type not in _APPLY:
        raise status.unsupported_media_type(list(_APPLY))
    expected = list if content_type == JSON_PATCH else dict
    if not isinstance(patch, expected):
        raise status.bad_request(f"the body is not a patch of type {content_type}")
    return _APPLY[content_type](copy.deepcopy(obj), copy.deepcopy(patch))


def _merge(target: Json, patch: Json) -> Json:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            known = target.get(name)
            target[name] = _merge(known if isinstance(known, dict) else {}, value)
        else:
            target[name] = value
    return target


def _strategic_merge(target: Json, patch: Json) -> Json:
    if patch.pop("$patch", None) == "replace":
        return patch
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            known = target.get(name)
            target[name] = _strategic_merge(known if isinstance(known, dict) else {}, value)
        elif name in _MERGE_KEYS and isinstance(value, list):
            target[name] = _merge_list(target.get(name, []), value, _MERGE_KEYS[name])
        else:
            target[name] = value
    return target


def _merge_list(target: list[Json], patch: list[Any], key: str) -> list[Json]:
    items = {item.get(key): item for item in target}
    for change in patch:
        if not isinstance(change, dict) or key not in change:
            raise status.bad_request(f"map: {change} does not contain declared merge key: {key}")
        if change.get("$patch") == "delete":
            items.pop(change[key], None)
        else:
            items[change[key]] = _strategic_merge(items.get(change[key], {}), change)
    return list(items.values())


def _json_patch(target: Json, operations: list[Any]) -> Json:
    holder: Json = {"document": target}
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise status.bad_request("an operation of a JSON patch is an object with a path")
        try:
            _apply_operation(holder, operation)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as exc:
            raise status.patch_failed() from exc
    document: Json = holder["document"]
    return document


def _apply_operation(holder: Json, operation: Json) -> None:
    kind, path = operation["op"], operation["path"]
    if kind == "add":
        _put(holder, path, operation["value"])
    elif kind == "remove":
        _take(holder, path)
    elif kind == "replace":
        _take(holder, path)
        _put(holder, path, operation["value"])
    elif kind == "move":
        _put(holder, path, _take(holder, operation["from"]))
    elif kind == "copy":
        _put(holder, path, copy.deepcopy(_look(holder, operation["from"])))
    elif kind == "test":
        if _look(holder, path) != operation["value"]:
            raise ValueError(f"test failed at {path}")
    else:
        raise ValueError(f"unknown operation {kind}")


def _steps(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise ValueError(f"not a JSON pointer: {path}")
    return ["document", *(step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:])]


def _parent(holder: Json, path: str) -> tuple[Any, str]:
    *before, last = _steps(path)
    place: Any = holder
    for step in before:
        place = place[int(step)] if isinstance(place, list) else place[step]
    return place, last


def _look(holder: Json, path: str) -> Any:
    place, last = _parent(holder, path)
    return place[int(last)] if isinstance(place, list) else place[last]


def _take(holder: Json, path: str) -> Any:
    place, last = _parent(holder, path)
    return place.pop(int(last)) if isinstance(place, list) else place.pop(last)


def _put(holder: Json, path: str, value: Any) -> None:
    place, last = _parent(holder, path)
    if isinstance(place, list):
        position = len(place) if last == "-" else int(last)
        if not 0 <= position <= len(place):
            raise IndexError(path)
        place.insert(position, value)
    else:
        place[last] = value


_APPLY: Mapping[str, Callable[[Json, Any], Json]] = {
    JSON_PATCH: _json_patch,
    MERGE: _merge,
    STRATEGIC: _strategic_merge,
}
