# SPDX-License-Identifier: Apache-2.0
"""Watches without HTTP: what wakes them, what ends them, and what they show of the past."""

from __future__ import annotations

import asyncio
import json

import pytest

from dispatcher.local.cluster.notify import Notifier
from dispatcher.local.cluster.resources import PODS
from dispatcher.local.cluster.store import Store
from dispatcher.local.cluster.watch import Watches, WatchQuery


class Cluster:
    """A store with its watches."""

    def __init__(self, history=100, bookmark_seconds=60.0):
        self.notifier = Notifier()
        self.store = Store(history=history, on_change=self.notifier.notify)
        self.closed = False
        self.watches = Watches(self.store, self.notifier, lambda: self.closed, bookmark_seconds)

    def create(self, name, namespace="n"):
        metadata = {"name": name, "namespace": namespace}
        return self.store.create("pods", {"metadata": metadata, "status": {"phase": "Pending"}})

    async def seen(self, on_event=lambda _event: None, **query):
        """Watch to the end and return type and name, or version, of what was seen."""
        found = []
        async for line in self.watches.stream(PODS, WatchQuery(**query)):
            assert line.endswith(b"\n")
            event = json.loads(line)
            found.append((event["type"], event["object"]["metadata"].get("name")))
            on_event(event)
        return found


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_a_change_wakes_a_watch():
    async def scenario():
        cluster = Cluster()
        watching = asyncio.create_task(cluster.seen(version=0, seconds=0.5))
        await asyncio.sleep(0)
        cluster.create("a")
        await asyncio.sleep(0)
        cluster.create("b", namespace="other")
        return await watching

    assert run(scenario()) == [("ADDED", "a"), ("ADDED", "b")]


def test_the_end_of_the_cluster_ends_a_watch():
    async def scenario():
        cluster = Cluster()
        watching = asyncio.create_task(cluster.seen(seconds=3600))
        await asyncio.sleep(0)
        cluster.closed = True
        cluster.notifier.notify()
        return await watching

    assert run(scenario()) == []


def test_what_changes_while_the_first_objects_are_sent_is_not_lost():
    async def scenario():
        cluster = Cluster()
        cluster.create("a")
        cluster.create("b")

        def on_event(event):
            if event["object"]["metadata"]["name"] == "a" and event["type"] == "ADDED":
                cluster.store.remove("pods", "n", "b")

        return await cluster.seen(on_event, seconds=0.1)

    assert run(scenario()) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "b")]


def test_a_version_in_the_future_is_waited_for():
    async def scenario():
        cluster = Cluster()
        watching = asyncio.create_task(cluster.seen(version=2, seconds=0.3))
        for name in "abc":
            await asyncio.sleep(0)
            cluster.create(name)
        return await watching

    assert run(scenario()) == [("ADDED", "c")]


def test_a_reader_that_falls_behind_the_history_is_told():
    async def scenario():
        cluster = Cluster(history=2)
        cluster.create("a")

        def on_event(event):
            if event["type"] == "ADDED":
                for number in range(3):
                    cluster.create(f"more-{number}")

        return await cluster.seen(on_event, seconds=5)

    assert run(scenario()) == [("ADDED", "a"), ("ERROR", None)]


def test_a_forgotten_version_is_known_as_such():
    cluster = Cluster(history=1)
    cluster.create("a")
    cluster.create("b")

    assert cluster.watches.is_expired(PODS, WatchQuery(version=0)) is False
    assert cluster.watches.is_expired(PODS, WatchQuery(version=None)) is False
    assert cluster.watches.is_expired(PODS, WatchQuery(version=1)) is False
    cluster.create("c")
    assert cluster.watches.is_expired(PODS, WatchQuery(version=1)) is True


@pytest.mark.parametrize(("wanted", "least", "most"), [(True, 2, 8), (False, 0, 0)])
def test_bookmarks_come_regularly_where_they_are_wanted(wanted, least, most):
    async def scenario():
        cluster = Cluster(bookmark_seconds=0.05)
        cluster.create("a")
        return await cluster.seen(version=1, seconds=0.3, bookmarks=wanted)

    assert least <= run(scenario()).count(("BOOKMARK", None)) <= most


def test_a_bookmark_comes_shortly_before_the_end():
    async def scenario():
        cluster = Cluster(bookmark_seconds=60)
        return await cluster.seen(version=0, seconds=2.2, bookmarks=True)

    assert run(scenario()) == [("BOOKMARK", None)]
