# SPDX-License-Identifier: Apache-2.0
"""JSON types of what callers send, and the rules for names."""

from __future__ import annotations

import pytest

from dispatcher.local.cluster import names, shapes
from dispatcher.local.cluster.shapes import ShapeError


def decode(body):
    return shapes.decode(body, "Pod", shapes.POD)


def test_kind_and_version_may_be_left_out_and_are_not_kept():
    assert decode({}) == {"metadata": {}}
    assert decode({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}) == {
        "metadata": {"name": "a"}
    }


def test_null_is_the_same_as_absent():
    body = {
        "metadata": {"name": "a", "labels": None},
        "spec": {"volumes": None, "containers": [{"env": None}]},
    }

    assert decode(body) == {"metadata": {"name": "a"}, "spec": {"containers": [{}]}}


def test_an_empty_label_may_be_null():
    assert decode({"metadata": {"labels": {"a": None}}}) == {"metadata": {"labels": {"a": ""}}}


def test_empty_parts_of_the_metadata_are_dropped():
    body = {"metadata": {"labels": {}, "annotations": {}, "finalizers": [], "resourceVersion": ""}}

    assert decode(body) == {"metadata": {}}


def test_unknown_fields_are_let_through():
    assert decode({"spec": {"x": [{"y": None}]}}) == {"metadata": {}, "spec": {"x": [{"y": None}]}}


@pytest.mark.parametrize("amount", ["1", "100m", "1.5Gi", "1e3", "-1", 2])
def test_quantities(amount):
    decode({"spec": {"containers": [{"resources": {"limits": {"memory": amount}}}]}})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "must be of type Pod"),
        ("x", "must be of type Pod"),
        ({"kind": "Secret"}, "Secret in version"),
        ({"apiVersion": "v2"}, 'version "v2"'),
        ({"metadata": []}, "metadata: expected an object"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels.a: expected a text"),
        ({"spec": {"containers": {}}}, "spec.containers: expected a list"),
        ({"spec": {"containers": [{"args": ["a", 1]}]}}, r"spec.containers\[0\].args\[1\]: expected a text"),
        ({"spec": {"activeDeadlineSeconds": "1"}}, "expected a whole number"),
        ({"spec": {"activeDeadlineSeconds": True}}, "expected a whole number"),
        ({"spec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}, "quantities must match"),
    ],
)
def test_wrong_types_are_refused(body, message):
    with pytest.raises(ShapeError, match=message):
        decode(body)


@pytest.mark.parametrize("value", ["", "a", "A-b_c.d", "1", "a" * 63])
def test_label_values(value):
    assert names.label_value_faults(value) == []


@pytest.mark.parametrize("value", ["-a", "a-", "a b", "é", "a" * 64, "a/b", "a\n"])
def test_wrong_label_values(value):
    assert names.label_value_faults(value)


@pytest.mark.parametrize("key", ["a", "a.b/c", "A_b", "x" * 63, "a-b.c/D.e"])
def test_label_keys(key):
    assert names.label_key_faults(key) == []


@pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a/b/c", "A/b", "-a", "a b", "x" * 64])
def test_wrong_label_keys(key):
    assert names.label_key_faults(key)


@pytest.mark.parametrize(
    ("name", "good"), [("a-b.c", True), ("a" * 253, True), ("a" * 254, False), ("A", False)]
)
def test_names_of_pods(name, good):
    assert (names.subdomain_faults(name) == []) is good


@pytest.mark.parametrize(("name", "good"), [("a-b", True), ("a.b", False), ("a" * 64, False), ("", False)])
def test_names_of_containers(name, good):
    assert (names.dns_label_faults(name) == []) is good
