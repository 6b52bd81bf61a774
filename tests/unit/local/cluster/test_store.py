# SPDX-License-Identifier: Apache-2.0
"""The store: identities, one version counter, and a history that reaches back so far."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dispatcher.local.cluster.store import (
    ObjectExistsError,
    ObjectMissingError,
    Store,
    VersionConflictError,
    VersionExpiredError,
    timestamp,
)

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def thing(name="a", namespace="n", **content):
    return {"metadata": {"name": name, "namespace": namespace}, **content}


@pytest.fixture
def store():
    return Store(clock=lambda: MOMENT)


def names(objects):
    return [obj["metadata"]["name"] for obj in objects]


def test_a_created_object_gets_its_identity(store):
    created = store.create("pods", thing())

    assert created["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert created["metadata"]["resourceVersion"] == "1"
    assert len(created["metadata"]["uid"]) == 36
    assert store.get("pods", "n", "a") == created


def test_one_counter_serves_all_resources(store):
    versions = [
        store.create("pods", thing())["metadata"]["resourceVersion"],
        store.create("secrets", thing())["metadata"]["resourceVersion"],
        store.update("pods", thing(value=1))["metadata"]["resourceVersion"],
        store.remove("secrets", "n", "a")["metadata"]["resourceVersion"],
    ]

    assert versions == ["1", "2", "3", "4"]
    assert store.version == 4


def test_a_name_is_taken_within_its_namespace_only(store):
    store.create("pods", thing())
    store.create("pods", thing(namespace="other"))

    with pytest.raises(ObjectExistsError) as caught:
        store.create("pods", thing())
    assert caught.value.existing["metadata"]["resourceVersion"] == "1"


def test_a_name_is_free_again_after_removal_and_gets_a_new_uid(store):
    first = store.create("pods", thing())
    store.remove("pods", "n", "a")

    assert store.create("pods", thing())["metadata"]["uid"] != first["metadata"]["uid"]


@pytest.mark.parametrize("call", ["get", "remove"])
def test_what_is_missing_is_told(store, call):
    with pytest.raises(ObjectMissingError):
        getattr(store, call)("pods", "n", "a")
    with pytest.raises(ObjectMissingError):
        store.update("pods", thing())


def test_an_update_may_expect_a_version(store):
    store.create("pods", thing())
    store.update("pods", thing(value=1), expected="1")

    with pytest.raises(VersionConflictError):
        store.update("pods", thing(value=2), expected="1")
    assert store.get("pods", "n", "a")["value"] == 1


def test_an_update_without_a_difference_is_no_change(store):
    created = store.create("pods", thing(value=1))

    assert store.update("pods", created) == created
    assert store.version == 1
    assert len(store.changes("pods", after=0)) == 1


def test_what_callers_hold_is_not_what_is_stored(store):
    given = thing(value=[1])
    created = store.create("pods", given)
    given["value"].append(2)
    created["value"].append(3)
    store.get("pods", "n", "a")["value"].append(4)

    assert store.get("pods", "n", "a")["value"] == [1]


def test_lists_are_sorted_by_namespace_and_name(store):
    for name, namespace in (("b", "x"), ("a", "y"), ("c", "x")):
        store.create("pods", thing(name, namespace))

    assert names(store.objects("pods")) == ["b", "c", "a"]
    assert names(store.objects("pods", "y")) == ["a"]
    assert store.objects("secrets") == []


def test_changes_come_in_order_with_what_was_before(store):
    created = store.create("pods", thing(value=1))
    store.create("secrets", thing())
    updated = store.update("pods", {**created, "value": 2})
    removed = store.remove("pods", "n", "a")

    changes = store.changes("pods", after=0)

    assert [(change.version, change.type) for change in changes] == [
        (1, "ADDED"),
        (3, "MODIFIED"),
        (4, "DELETED"),
    ]
    assert [change.object for change in changes] == [created, updated, removed]
    assert [change.previous for change in changes] == [None, created, updated]
    assert store.changes("pods", after=3) == changes[2:]
    assert store.changes("pods", after=4) == []
    assert store.changes("pods", after=99) == []


def test_old_changes_are_forgotten_for_each_resource_by_itself():
    store = Store(history=2)
    store.create("secrets", thing())
    for name in "abc":
        store.create("pods", thing(name))

    assert names(change.object for change in store.changes("pods", after=2)) == ["b", "c"]
    with pytest.raises(VersionExpiredError) as caught:
        store.changes("pods", after=1)
    assert caught.value.oldest == 2
    assert len(store.changes("secrets", after=0)) == 1


def test_a_state_of_the_past_is_shown_as_it_was(store):
    first = store.create("pods", thing("a", value=1))
    store.create("pods", thing("b"))
    store.update("pods", {**first, "value": 2})
    store.remove("pods", "n", "b")
    store.create("pods", thing("c", "other"))

    assert [names(store.objects_at("pods", None, version)) for version in range(6)] == [
        [],
        ["a"],
        ["a", "b"],
        ["a", "b"],
        ["a"],
        ["a", "c"],
    ]
    assert store.objects_at("pods", "n", 2)[0]["value"] == 1
    assert names(store.objects_at("pods", "other", 5)) == ["c"]


def test_a_forgotten_state_is_not_shown():
    store = Store(history=1)
    store.create("pods", thing("a"))
    store.create("pods", thing("b"))

    with pytest.raises(VersionExpiredError):
        store.objects_at("pods", None, 0)


def test_every_change_is_told():
    told = itertools.count()
    store = Store(on_change=lambda: next(told))
    created = store.create("pods", thing())
    store.update("pods", created)
    store.update("pods", {**created, "value": 1})
    store.remove("pods", "n", "a")

    assert next(told) == 3


def test_a_timestamp_is_in_utc():
    from datetime import timedelta, timezone

    assert timestamp(MOMENT.astimezone(timezone(timedelta(hours=5)))) == "2026-01-02T03:04:05Z"


class StoreMachine(RuleBasedStateMachine):
    """Whoever applies the changes after any version to the state of it has the present state."""

    keys = Bundle("keys")

    def __init__(self):
        super().__init__()
        self.store = Store(history=6)
        self.states = {0: {}}

    def present(self):
        return {obj["metadata"]["name"]: obj for obj in self.store.objects("pods")}

    @rule(target=keys, name=strategies.sampled_from("abc"))
    def create(self, name):
        if name in self.present():
            with pytest.raises(ObjectExistsError):
                self.store.create("pods", thing(name))
        else:
            self.store.create("pods", thing(name))
        return name

    @rule(name=keys, value=strategies.integers(0, 2))
    def update(self, name, value):
        if name in self.present():
            self.store.update("pods", {**self.present()[name], "value": value})

    @rule(name=keys)
    def remove(self, name):
        if name in self.present():
            self.store.remove("pods", "n", name)

    @rule()
    def change_something_else(self):
        self.store.create("secrets", thing(f"s{self.store.version}"))

    @invariant()
    def every_known_state_leads_to_the_present(self):
        self.states[self.store.version] = self.present()
        for version, state in self.states.items():
            try:
                changes = self.store.changes("pods", after=version)
            except VersionExpiredError:
                continue
            replayed = dict(state)
            for change in changes:
                name = change.object["metadata"]["name"]
                assert change.previous == replayed.get(name)
                if change.type == "DELETED":
                    del replayed[name]
                else:
                    replayed[name] = change.object
            assert replayed == self.present()
            past = self.store.objects_at("pods", None, version)
            assert {obj["metadata"]["name"]: obj for obj in past} == state


StoreMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestStoreMachine = StoreMachine.TestCase
