# SPDX-License-Identifier: Apache-2.0
"""Routing: the user's rules, the built-in ones, and what is said about invalid rules."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.domain.errors import ConfigurationError
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.routing import Route, Router, parse_rules
from dispatcher.domain.workload import WorkloadKind, WorkloadView

CELERY, KUBERNETES = BackendName.CELERY, BackendName.KUBERNETES
TASK, CALLBACK, TEST = WorkloadKind.TASK, WorkloadKind.CALLBACK, WorkloadKind.TEST_CONNECTION
SOURCE = "[dispatcher] routes"


def _router(*rules, callback_backend=CELERY):
    return Router(
        kubernetes_queue="kubernetes",
        callback_backend=callback_backend,
        callback_queue="callbacks",
        default_queue="default",
        rules=parse_rules(json.dumps(rules), SOURCE),
    )


def _view(**facts):
    values = {
        "kind": TASK,
        "queue": "q",
        "dag_id": "etl",
        "task_id": "load",
        "run_id": "manual__1",
        "pool": "default_pool",
        "priority": 5,
    }
    return WorkloadView(**values | facts)


@pytest.mark.parametrize(
    ("facts", "route"),
    [
        ({}, Route(CELERY, "q", "default")),
        ({"queue": None}, Route(CELERY, "default", "default")),
        ({"queue": ""}, Route(CELERY, "default", "default")),
        ({"queue": "kubernetes"}, Route(KUBERNETES, "kubernetes", "kubernetes_queue")),
        ({"queue": "kubernetes2"}, Route(CELERY, "kubernetes2", "default")),
        ({"has_pod_override": True}, Route(KUBERNETES, "q", "pod override")),
        ({"kind": CALLBACK, "queue": None}, Route(CELERY, "callbacks", "callback_backend")),
        ({"kind": CALLBACK, "queue": "kubernetes"}, Route(CELERY, "kubernetes", "callback_backend")),
        ({"kind": TEST, "queue": None}, Route(CELERY, "default", "default")),
        ({"kind": TEST, "queue": "q"}, Route(CELERY, "q", "default")),
    ],
)
def test_built_in_rules(facts, route):
    assert _router().route(_view(**facts)) == route


def test_callbacks_go_to_the_backend_of_the_setting():
    route = _router(callback_backend=KUBERNETES).route(_view(kind=CALLBACK, queue=None))
    assert route == Route(KUBERNETES, "callbacks", "callback_backend")


MATCHES = [
    ({"kind": "task"}, {"kind": TASK}, {"kind": CALLBACK}),
    ({"kind": "callback"}, {"kind": CALLBACK}, {"kind": TASK}),
    ({"kind": "test_connection"}, {"kind": TEST}, {"kind": TASK}),
    ({"queue": "gpu*"}, {"queue": "gpu-large"}, {"queue": "cpu"}),
    ({"queue": "gpu*"}, {"queue": "gpu"}, {"queue": None}),
    ({"queue": "GPU"}, {"queue": "GPU"}, {"queue": "gpu"}),
    ({"dag_id": "tr[ae]in_?"}, {"dag_id": "train_1"}, {"dag_id": "train_10"}),
    ({"task_id": "load"}, {"task_id": "load"}, {"task_id": "unload"}),
    ({"run_id": "manual__*"}, {"run_id": "manual__x"}, {"run_id": "scheduled__x"}),
    ({"pool": "big"}, {"pool": "big"}, {"pool": "default_pool"}),
    ({"team": "red"}, {"team": "red"}, {"team": None}),
    ({"callback": "alerts.*"}, {"callback": "alerts.mail.send"}, {"callback": "other.alerts.x"}),
    ({"has_pod_override": True}, {"has_pod_override": True}, {"has_pod_override": False}),
    ({"has_pod_override": False}, {"has_pod_override": False}, {"has_pod_override": True}),
    ({"min_priority": 5}, {"priority": 5}, {"priority": 4}),
    ({"min_priority": -1}, {"priority": -1}, {"priority": -2}),
    ({"dag_id": "a", "task_id": "b"}, {"dag_id": "a", "task_id": "b"}, {"dag_id": "a", "task_id": "c"}),
]


@pytest.mark.parametrize(("match", "held", "missed"), MATCHES, ids=[json.dumps(case[0]) for case in MATCHES])
def test_a_rule_holds_only_where_all_its_conditions_do(match, held, missed):
    router = _router({"match": match, "backend": "kubernetes", "queue": "chosen"})
    assert router.route(_view(**held)) == Route(KUBERNETES, "chosen", "routes rule 1")
    assert router.route(_view(**missed)).reason != "routes rule 1"


def test_a_rule_without_conditions_holds_for_all():
    router = _router({"match": {}, "backend": "kubernetes"})
    assert {router.route(_view(kind=kind)).backend for kind in WorkloadKind} == {KUBERNETES}


def test_the_first_rule_that_holds_wins():
    router = _router(
        {"match": {"dag_id": "none"}, "backend": "kubernetes"},
        {"match": {"dag_id": "etl"}, "backend": "celery", "queue": "first"},
        {"match": {"dag_id": "etl"}, "backend": "kubernetes", "queue": "second"},
    )
    assert router.route(_view()) == Route(CELERY, "first", "routes rule 2")


def test_a_users_rule_comes_before_the_built_in_ones():
    router = _router({"match": {"queue": "kubernetes"}, "backend": "celery"})
    assert router.route(_view(queue="kubernetes", has_pod_override=True)).backend is CELERY


@pytest.mark.parametrize("kind", WorkloadKind)
def test_a_rule_without_a_queue_keeps_the_workloads_own(kind):
    router = _router({"match": {}, "backend": "kubernetes"})
    assert router.route(_view(kind=kind, queue="own")).queue == "own"
    fallback = "callbacks" if kind is CALLBACK else "default"
    assert router.route(_view(kind=kind, queue=None)).queue == fallback


@pytest.mark.parametrize("text", ["", "  \n", "[]"])
def test_no_rules(text):
    assert parse_rules(text, SOURCE) == ()


RULE = {"match": {}, "backend": "celery"}


def _one(**changes):
    return json.dumps([RULE | changes])


INVALID = [
    ("not JSON", "{", ["not valid JSON"]),
    ("JSON cut off", '[{"match": {}', ["not valid JSON"]),
    ("not a list", '{"match": {}}', ["JSON list", "dict"]),
    ("a text", '"x"', ["JSON list", "str"]),
    ("a rule that is no object", json.dumps([RULE, "x"]), ["rule 2", "whole rule"]),
    ("no match", json.dumps([{"backend": "celery"}]), ["rule 1", "key match"]),
    ("no backend", json.dumps([RULE, {"match": {}}]), ["rule 2", "key backend"]),
    ("unknown backend", _one(backend="local"), ["rule 1", "key backend", "celery", "kubernetes"]),
    ("backend in capitals", _one(backend="Celery"), ["rule 1", "key backend"]),
    ("backend with a line end", _one(backend="celery\n"), ["rule 1", "key backend"]),
    ("unknown key", _one(que="x"), ["rule 1", "key que"]),
    ("unknown condition", _one(match={"dag": "x"}), ["key match.dag: there is no such key", "dag_id, "]),
    ("match is no object", _one(match="x"), ["rule 1", "key match"]),
    ("wrong kind", _one(match={"kind": "dag"}), ["rule 1", "key match.kind", "callback"]),
    ("a number as glob", _one(match={"dag_id": 1}), ["rule 1", "key match.dag_id"]),
    ("a list as glob", _one(match={"dag_id": ["a"]}), ["rule 1", "key match.dag_id"]),
    ("a text as truth", _one(match={"has_pod_override": "yes"}), ["rule 1", "has_pod_override"]),
    ("a number as truth", _one(match={"has_pod_override": 1}), ["rule 1", "has_pod_override"]),
    ("a text as number", _one(match={"min_priority": "5"}), ["rule 1", "key match.min_priority"]),
    ("a truth as number", _one(match={"min_priority": True}), ["rule 1", "min_priority"]),
    ("an empty queue", _one(queue=""), ["rule 1", "key queue"]),
    ("two faults", _one(match={"x": 1}, backend="y"), ["rule 1", "key match.x", "key backend"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "named"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_an_invalid_rule_is_named_with_its_key(text, named):
    with pytest.raises(ConfigurationError) as caught:
        parse_rules(text, SOURCE)
    message = str(caught.value)
    assert message.startswith(SOURCE)
    assert "\n" not in message
    for part in named:
        assert part in message
    assert caught.value.__cause__ is not None or "must be a JSON list" in message


names = st.none() | st.sampled_from(["", "a", "b", "ab", "kubernetes", "a*", "[", "é"])
globs = st.sampled_from(["a", "b", "*", "a*", "?", "[ab]", "[", "kubernetes"])
views = st.builds(
    WorkloadView,
    kind=st.sampled_from(WorkloadKind),
    queue=names,
    dag_id=names,
    task_id=names,
    run_id=names,
    pool=names,
    team=names,
    callback=names,
    has_pod_override=st.booleans(),
    priority=st.integers(-3, 3),
)
rules = st.fixed_dictionaries(
    {
        "match": st.fixed_dictionaries(
            {},
            optional={
                "kind": st.sampled_from([kind.value for kind in WorkloadKind]),
                "queue": globs,
                "dag_id": globs,
                "callback": globs,
                "has_pod_override": st.booleans(),
                "min_priority": st.integers(-3, 3),
            },
        ),
        "backend": st.sampled_from([name.value for name in BackendName]),
    },
    optional={"queue": st.sampled_from(["x", "y"])},
)


@given(rules=st.lists(rules, max_size=4), view=views)
def test_routing_is_total_and_the_same_each_time(rules, view):
    router = _router(*rules)
    route = router.route(view)
    assert route == _router(*rules).route(view)
    assert route.queue
    assert route.reason
    chosen = [number for number, rule in enumerate(router.rules, start=1) if rule.match.holds(view)]
    assert (route.reason == f"routes rule {chosen[0]}") if chosen else (route == _router().route(view))
