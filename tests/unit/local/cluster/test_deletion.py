# SPDX-License-Identifier: Apache-2.0
"""Deletion: in steps where a process has to end, with owners and namespaces, and held by finalizers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dispatcher.local.cluster.deletion import Deletions
from dispatcher.local.cluster.resources import NAMESPACES, PODS, SECRETS
from dispatcher.local.cluster.store import ObjectMissingError, Store

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def store():
    store = Store()
    store.create("namespaces", {"metadata": {"name": "n"}, "status": {"phase": "Active"}})
    return store


@pytest.fixture
def deletions(store):
    return Deletions(store, lambda: MOMENT)


def pod(name="p", phase="Running", node="somewhere", **metadata):
    return {
        "metadata": {"name": name, "namespace": "n", **metadata},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30},
        "status": {"phase": phase},
    }


def changes(store, resource="pods"):
    return [change.type for change in store.changes(resource, after=0)]


def exists(store, resource, name):
    try:
        store.get(resource, "" if resource == "namespaces" else "n", name)
    except ObjectMissingError:
        return False
    return True


@pytest.mark.parametrize(
    ("wanted", "seconds", "moment"),
    [(None, 30, "2026-01-02T03:04:35Z"), (5, 5, "2026-01-02T03:04:10Z")],
)
def test_a_running_pod_is_marked_with_its_time(store, deletions, wanted, seconds, moment):
    marked, gone = deletions.delete(PODS, store.create("pods", pod()), wanted)

    assert gone is False
    assert marked["metadata"]["deletionGracePeriodSeconds"] == seconds
    assert marked["metadata"]["deletionTimestamp"] == moment
    deletions.finish(PODS, store.get("pods", "n", "p"))
    assert changes(store) == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]


@pytest.mark.parametrize(
    ("body", "wanted"), [(pod(), 0), (pod(), -1), (pod(phase="Succeeded"), 30), (pod(node=""), 30)]
)
def test_nothing_is_waited_for_where_nothing_runs(store, deletions, body, wanted):
    marked, gone = deletions.delete(PODS, store.create("pods", body), wanted)

    assert gone is True
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
    assert changes(store) == ["ADDED", "MODIFIED", "DELETED"]


def test_the_time_only_gets_shorter(store, deletions):
    deletions.delete(PODS, store.create("pods", pod()), 20)
    for wanted, expected in ((25, 20), (20, 20), (3, 3)):
        marked, _gone = deletions.delete(PODS, store.get("pods", "n", "p"), wanted)
        assert marked["metadata"]["deletionGracePeriodSeconds"] == expected
    assert changes(store) == ["ADDED", "MODIFIED", "MODIFIED"]


def test_a_finalizer_holds_even_a_finished_pod(store, deletions):
    body = pod(phase="Failed", finalizers=["example.com/hold"])
    _marked, gone = deletions.delete(PODS, store.create("pods", body))

    assert gone is False
    deletions.finish(PODS, store.get("pods", "n", "p"))
    assert exists(store, "pods", "p")


def owned_by(*references):
    full = [{"apiVersion": "v1", "kind": "Pod", "name": "p", **reference} for reference in references]
    return {"metadata": {"name": "s", "namespace": "n", "ownerReferences": full}}


def test_what_is_owned_goes_with_the_last_of_its_owners(store, deletions):
    owners = [store.create("pods", pod(name, node=""))["metadata"] for name in "ab"]
    store.create("secrets", owned_by(*({"uid": owner["uid"]} for owner in owners)))
    for owner in owners:
        deletions.collect()
        assert exists(store, "secrets", "s")
        deletions.delete(PODS, store.get("pods", "n", owner["name"]))
    deletions.collect()
    assert not exists(store, "secrets", "s")


def test_what_is_owned_by_something_unknown_stays(store, deletions):
    store.create("secrets", owned_by({"uid": "x", "kind": "Job", "apiVersion": "batch/v1"}))
    deletions.collect()

    assert exists(store, "secrets", "s")


def test_a_namespace_goes_once_it_is_empty(store, deletions):
    store.create("pods", pod())
    store.create("secrets", {"metadata": {"name": "s", "namespace": "n"}})
    marked, gone = deletions.delete(NAMESPACES, store.get("namespaces", "", "n"))
    assert (marked["status"]["phase"], gone) == ("Terminating", False)

    deletions.collect()
    assert not exists(store, "secrets", "s")
    assert "deletionTimestamp" in store.get("pods", "n", "p")["metadata"]
    deletions.collect()
    assert exists(store, "namespaces", "n")
    deletions.finish(PODS, store.get("pods", "n", "p"))
    deletions.collect()
    assert not exists(store, "namespaces", "n")


def test_a_secret_goes_at_once(store, deletions):
    secret = store.create("secrets", {"metadata": {"name": "s", "namespace": "n"}})

    assert deletions.delete(SECRETS, secret)[1] is True
    assert changes(store, "secrets") == ["ADDED", "DELETED"]
