# SPDX-License-Identifier: Apache-2.0
"""Watches: the changes that a selector sees, one JSON line each, from any version that is still known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from dispatcher.local.cluster import status
from dispatcher.local.cluster.notify import Notifier
from dispatcher.local.cluster.resources import Resource
from dispatcher.local.cluster.selectors import Selector
from dispatcher.local.cluster.store import Change, Json, Store, VersionExpiredError

BOOKMARK_BEFORE_END_SECONDS = 2.0
DEFAULT_SECONDS = 3600.0


@dataclass(frozen=True)
class WatchQuery:
    """What a watch is asked for.

    :param namespace: only objects of it; of all when absent.
    :param selector: conditions on the objects.
    :param version: see only what came after it; when absent or 0, the present objects come first.
    :param seconds: how long the watch lasts.
    :param bookmarks: whether the version may be sent now and then without an object.
    """

    namespace: str | None = None
    selector: Selector = field(default_factory=Selector)
    version: int | None = None
    seconds: float = DEFAULT_SECONDS
    bookmarks: bool = False


@dataclass(frozen=True)
class Watches:
    """Serves watches.

    :param store: the objects.
    :param notifier: notified after each of their changes, and when the cluster ends.
    :param closing: says whether the cluster ends, and with it all watches.
    :param bookmark_seconds: time between two bookmarks.
    """

    store: Store
    notifier: Notifier
    closing: Callable[[], bool]
    bookmark_seconds: float = 60.0

    def is_expired(self, resource: Resource, query: WatchQuery) -> bool:
        """Say whether the watch would begin at a version that is forgotten."""
        try:
            self.store.changes(resource.plural, after=query.version or self.store.version)
        except VersionExpiredError:
            return True
        return False

    async def stream(self, resource: Resource, query: WatchQuery) -> AsyncIterator[bytes]:
        """Yield the events of a watch, one line each, until its time is over.

        A version that is forgotten, at the start or because the reader is too slow, ends the watch with an
        ERROR event that holds a Status with code 410.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + query.seconds
        position = query.version or self.store.version
        if not query.version:
            for obj in self.store.objects(resource.plural, query.namespace):
                if query.selector.matches(obj):
                    yield _line("ADDED", resource.present(obj))
        bookmark = _next_bookmark(clock(), end, self.bookmark_seconds)
        while not self.closing():
            try:
                changes = self.store.changes(resource.plural, after=position)
            except VersionExpiredError:
                yield _line("ERROR", status.expired("watch").body)
                return
            position = max(position, self.store.version)
            for line in _seen(resource, query, changes):
                yield line
            now = clock()
            if now >= end:
                return
            if query.bookmarks and now >= bookmark:
                yield _line("BOOKMARK", _bookmark(resource, position))
                bookmark = _next_bookmark(now, end, self.bookmark_seconds)
            if self.store.version <= position:
                await self.notifier.wait(min(end, bookmark) - now if query.bookmarks else end - now)


def _next_bookmark(now: float, end: float, interval: float) -> float:
    """Return when the next bookmark is due: regularly, and shortly before the end of the watch."""
    regular, before_end = now + interval, end - BOOKMARK_BEFORE_END_SECONDS
    return min(regular, before_end) if now < before_end else regular


def _seen(resource: Resource, query: WatchQuery, changes: list[Change]) -> Iterator[bytes]:
    for change in changes:
        if query.namespace not in {None, change.object["metadata"].get("namespace")}:
            continue
        matched, matches = query.selector.matches(change.previous), query.selector.matches(change.object)
        if change.type == "DELETED" and matched:
            yield _line("DELETED", resource.present(change.object))
        elif change.type != "DELETED" and matches:
            yield _line("MODIFIED" if matched else "ADDED", resource.present(change.object))
        elif matched and change.previous is not None:
            yield _line("DELETED", resource.present(_at_version(change.previous, change.version)))


def _at_version(obj: Json, version: int) -> Json:
    """Return the object as it was last seen by the selector, with the version of the change that hid it."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}


def _bookmark(resource: Resource, version: int) -> Json:
    return resource.present({"metadata": {"resourceVersion": str(version), "creationTimestamp": None}})


def _line(kind: str, obj: Json) -> bytes:
    return json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"
