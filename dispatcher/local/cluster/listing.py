# SPDX-License-Identifier: Apache-2.0
"""Lists: selected, in chunks, and of a version in the past."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field

from dispatcher.local.cluster import status
from dispatcher.local.cluster.resources import Resource
from dispatcher.local.cluster.selectors import Selector
from dispatcher.local.cluster.store import Json, Store, VersionExpiredError

_TOKEN_VERSION = "meta.k8s.io/v1"
_PRESENT = -1
"""Version in a token that takes the rest of a list from the present state."""


@dataclass(frozen=True)
class ListQuery:
    """What a list is asked for.

    :param namespace: only objects of it; of all when absent.
    :param selector: conditions on the objects.
    :param limit: objects in one answer; 0 for all.
    :param continue_token: from the answer before.
    :param version: lowest version that the answer may show; with ``exact`` the one that it shows.
    :param exact: whether the state at ``version`` is wanted.
    """

    namespace: str | None = None
    selector: Selector = field(default_factory=Selector)
    limit: int = 0
    continue_token: str = ""
    version: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class _Position:
    version: int
    start: str


def list_objects(store: Store, resource: Resource, query: ListQuery) -> Json:
    """Return the List object that answers a query.

    :raises ApiError: 400, a wrong token; 410, the version is forgotten; 504, it does not exist yet.
    """
    position = _position(store, query)
    try:
        objects = store.objects_at(resource.plural, query.namespace, position.version)
    except VersionExpiredError as exc:
        if not query.continue_token:
            raise status.expired("list") from exc
        token = _encode(_Position(_PRESENT, position.start))
        raise status.expired("continue parameter", token) from exc
    ahead = [obj for obj in objects if _sort_key(obj, query.namespace) >= position.start]
    return _chunk(resource, query, ahead, position.version)


def _chunk(resource: Resource, query: ListQuery, objects: list[Json], version: int) -> Json:
    items: list[Json] = []
    metadata: Json = {"resourceVersion": str(version)}
    for number, obj in enumerate(objects):
        if 0 < query.limit <= len(items):
            start = _sort_key(objects[number - 1], query.namespace) + "\0"
            metadata["continue"] = _encode(_Position(version, start))
            if query.selector.everything:
                metadata["remainingItemCount"] = len(objects) - number
            break
        if query.selector.matches(obj):
            items.append(obj)
    return {"kind": f"{resource.kind}List", "apiVersion": "v1", "metadata": metadata, "items": items}


def _position(store: Store, query: ListQuery) -> _Position:
    if query.continue_token:
        if query.version:
            message = "specifying resource version is not allowed when using continue"
            raise status.bad_request(message)
        position = _decode(query.continue_token)
        return _Position(store.version, position.start) if position.version == _PRESENT else position
    if query.version is not None and query.version > store.version:
        raise status.version_in_future(query.version, store.version)
    if query.exact and query.version is not None:
        return _Position(query.version, "")
    return _Position(store.version, "")


def _sort_key(obj: Json, namespace: str | None) -> str:
    metadata = obj["metadata"]
    name: str = metadata["name"]
    return name if namespace is not None or "namespace" not in metadata else f"{metadata['namespace']}/{name}"


def _encode(position: _Position) -> str:
    token = {"v": _TOKEN_VERSION, "rv": position.version, "start": position.start}
    return base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")


def _decode(token: str) -> _Position:
    try:
        padded = token + "=" * (-len(token) % 4)
        found = json.loads(base64.urlsafe_b64decode(padded))
        return _Position(int(found["rv"]), str(found["start"]))
    except (binascii.Error, ValueError, KeyError, TypeError) as exc:
        raise status.bad_request(f"invalid continue token: continue key is not valid: {exc}") from exc
