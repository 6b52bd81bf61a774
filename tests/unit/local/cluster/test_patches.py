# SPDX-License-Identifier: Apache-2.0
"""The three kinds of patch."""

from __future__ import annotations

import pytest

from dispatcher.local.cluster import patches
from dispatcher.local.cluster.patches import JSON_PATCH, MERGE, STRATEGIC
from dispatcher.local.cluster.status import ApiError


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": "b"}, {"a": {"c": 1}}, {"a": {"c": 1}}),
        ({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
    ],
)
def test_merge(target, patch, expected):
    assert patches.apply(MERGE, target, patch) == expected


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"labels": {"a": 1}}, {"labels": {"b": 2}}, {"labels": {"a": 1, "b": 2}}),
        ({"labels": {"a": 1}}, {"labels": {"a": None}}, {"labels": {}}),
        ({"labels": {"a": 1}}, {"labels": {"$patch": "replace", "b": 2}}, {"labels": {"b": 2}}),
        (
            {"containers": [{"name": "a", "image": 1}, {"name": "b"}]},
            {"containers": [{"name": "a", "image": 2}, {"name": "c"}]},
            {"containers": [{"name": "a", "image": 2}, {"name": "b"}, {"name": "c"}]},
        ),
        (
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [{"name": "b"}]},
        ),
        ({"finalizers": ["a"]}, {"finalizers": ["b"]}, {"finalizers": ["b"]}),
        ({"a": 1}, {"$setElementOrder/a": [], "a": 2}, {"a": 2}),
    ],
)
def test_strategic_merge(target, patch, expected):
    assert patches.apply(STRATEGIC, target, patch) == expected


def test_a_strategic_item_without_its_key_is_refused():
    with pytest.raises(ApiError) as caught:
        patches.apply(STRATEGIC, {}, {"containers": [{"image": 1}]})
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/b", "value": 2}], {"a": {"x": 1}, "l": [1, 2], "b": 2}),
        ([{"op": "add", "path": "/a/y~1z", "value": 2}], {"a": {"x": 1, "y/z": 2}, "l": [1, 2]}),
        ([{"op": "add", "path": "/l/1", "value": 9}], {"a": {"x": 1}, "l": [1, 9, 2]}),
        ([{"op": "add", "path": "/l/-", "value": 9}], {"a": {"x": 1}, "l": [1, 2, 9]}),
        ([{"op": "remove", "path": "/l/0"}], {"a": {"x": 1}, "l": [2]}),
        ([{"op": "replace", "path": "/a/x", "value": 2}], {"a": {"x": 2}, "l": [1, 2]}),
        ([{"op": "move", "from": "/a/x", "path": "/x"}], {"a": {}, "l": [1, 2], "x": 1}),
        ([{"op": "copy", "from": "/a", "path": "/b"}], {"a": {"x": 1}, "l": [1, 2], "b": {"x": 1}}),
        ([{"op": "test", "path": "/a/x", "value": 1}], {"a": {"x": 1}, "l": [1, 2]}),
        ([{"op": "replace", "path": "", "value": {"n": 1}}], {"n": 1}),
    ],
)
def test_json_patch(operations, expected):
    target = {"a": {"x": 1}, "l": [1, 2]}

    assert patches.apply(JSON_PATCH, target, operations) == expected
    assert target == {"a": {"x": 1}, "l": [1, 2]}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/nonesuch"},
        {"op": "remove", "path": "/l/7"},
        {"op": "replace", "path": "/nonesuch", "value": 1},
        {"op": "add", "path": "/l/7", "value": 1},
        {"op": "add", "path": "/a/x/y", "value": 1},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/b"},
        {"op": "test", "path": "/a/x", "value": 2},
        {"op": "move", "from": "/nonesuch", "path": "/b"},
        {"op": "nonesuch", "path": "/a"},
        {"path": "/a"},
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(operation):
    with pytest.raises(ApiError) as caught:
        patches.apply(JSON_PATCH, {"a": {"x": 1}, "l": [1, 2]}, [operation])
    assert (caught.value.code, caught.value.body["reason"]) == (422, "Invalid")


@pytest.mark.parametrize(
    ("content_type", "patch", "code"),
    [
        (MERGE, [], 400),
        (STRATEGIC, "x", 400),
        (JSON_PATCH, {}, 400),
        (JSON_PATCH, ["x"], 400),
        (JSON_PATCH, [{"op": "add"}], 400),
        ("application/json", {}, 415),
    ],
)
def test_what_is_no_patch_is_refused(content_type, patch, code):
    with pytest.raises(ApiError) as caught:
        patches.apply(content_type, {}, patch)
    assert caught.value.code == code
