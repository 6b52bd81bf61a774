# SPDX-License-Identifier: Apache-2.0
"""Selectors: what they match, and what is refused. The contract suite holds the same to a real server."""

from __future__ import annotations

import pytest

from dispatcher.local.cluster import selectors
from dispatcher.local.cluster.selectors import Requirement, SelectorError

PATHS = {"metadata.name": ("metadata", "name"), "status.phase": ("status", "phase")}


def thing(labels=None, phase="Pending"):
    metadata = {"name": "a"} if labels is None else {"name": "a", "labels": labels}
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("  ", ()),
        ("a", (Requirement("a", "exists"),)),
        ("!a", (Requirement("a", "!"),)),
        ("a=b", (Requirement("a", "in", ("b",)),)),
        ("a==b", (Requirement("a", "in", ("b",)),)),
        ("a!=b", (Requirement("a", "notin", ("b",)),)),
        ("a=", (Requirement("a", "in", ("",)),)),
        ("a=,b", (Requirement("a", "in", ("",)), Requirement("b", "exists"))),
        ("a in (b, c)", (Requirement("a", "in", ("b", "c")),)),
        ("a notin (b)", (Requirement("a", "notin", ("b",)),)),
        ("a in ()", (Requirement("a", "in", ("",)),)),
        ("a in (b,)", (Requirement("a", "in", ("b", "")),)),
        ("a>1,b<-2", (Requirement("a", ">", ("1",)), Requirement("b", "<", ("-2",)))),
        ("in in (in)", (Requirement("in", "in", ("in",)),)),
        ("x.y/z=1", (Requirement("x.y/z", "in", ("1",)),)),
    ],
)
def test_label_selectors_are_read(text, expected):
    assert selectors.parse_labels(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(",", "a,", "a b", "a=b c", "a=b)", "(a)", "a in b", "a in (b", "a in (b c)", "a in", "a>x", "a>"),
        *("=b", "!", "a=-", "-a", "a/b/c", "a=" + "b" * 64, "a!b", "!a=b", "a=(b)"),
    ],
)
def test_bad_label_selectors_are_refused(text):
    with pytest.raises(SelectorError):
        selectors.parse_labels(text)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a=b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a=b", None, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("a>5", {"a": "6"}, True),
        ("a>5", {"a": "5"}, False),
        ("a<0", {"a": "-1"}, True),
        ("a>5", {"a": "x"}, False),
        ("a>5", {}, False),
        ("a=b,c=d", {"a": "b", "c": "d"}, True),
        ("a=b,c=d", {"a": "b"}, False),
    ],
)
def test_labels_are_judged(text, labels, expected):
    assert selectors.parse(text, "", PATHS).matches(thing(labels)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metadata.name=a", True),
        ("metadata.name==a,status.phase!=Running", True),
        ("metadata.name=b", False),
        ("status.phase=", False),
        ("", True),
    ],
)
def test_fields_are_judged(text, expected):
    assert selectors.parse("", text, PATHS).matches(thing()) is expected


def test_a_missing_field_is_empty():
    assert selectors.parse("", "status.phase=", PATHS).matches({"metadata": {"name": "a"}})


@pytest.mark.parametrize("text", ["other=a", "metadata.name", "=a", "metadata.name=a,x"])
def test_bad_field_selectors_are_refused(text):
    with pytest.raises(SelectorError):
        selectors.parse_fields(text, PATHS)


def test_nothing_never_matches():
    assert not selectors.parse("", "", PATHS).matches(None)
    assert selectors.parse("", "", PATHS).everything
    assert not selectors.parse("a", "", PATHS).everything
