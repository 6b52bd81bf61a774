# SPDX-License-Identifier: Apache-2.0
"""K10: the watch gets 410 in both forms, dies without a word, or is cut in the middle of a line."""

from __future__ import annotations

import logging

import pytest

from dispatcher.backends.base import Sent
from dispatcher.backends.kubernetes.options import WatchTimes
from tests.support import fault_proxy
from tests.support.backend_harness import eventually, make_submission, submit

pytestmark = pytest.mark.needs("kubernetes")

WATCH = "watch=True"
FAST = WatchTimes(watch=2, silence=3, connect=2, shortest_round=0.2)


def send(backend, number=1):
    batch = [make_submission() for _ in range(number)]
    results = submit(backend, *batch)
    assert all(isinstance(result, Sent) for result in results.values())
    return batch


def await_endings(backend, submissions):
    tokens = sorted(submission.token for submission in submissions)
    return eventually(
        lambda: sorted(one.token for one in backend.observe()) == tokens, "each ending is told, and once"
    )


def expect_every_event_once(field, fault):
    proxy = field.proxy()
    proxy.on("GET", WATCH, fault, times=2)
    backend = field.backend(through=proxy, watch_times=FAST)
    before, after = send(backend), send(backend)
    for submission in before:
        field.kubelet.end(field.kubelet.name_of(submission.token), 0)
    await_endings(backend, before)
    for submission in after:
        field.kubelet.end(field.kubelet.name_of(submission.token), 1)
    await_endings(backend, [*before, *after])


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault_proxy.answer(410), id="as HTTP status"),
        pytest.param(fault_proxy.expired_event, id="as an ERROR event"),
    ],
)
def test_fault_55_a_version_that_is_too_old_loses_no_event(field, fault):
    expect_every_event_once(field, fault)


def test_fault_56_a_connection_that_is_dead_but_open_loses_no_event(field):
    expect_every_event_once(field, fault_proxy.silence)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault_proxy.cut_in_a_line, id="cut in the middle of a line"),
        pytest.param(fault_proxy.reset, id="reset"),
        pytest.param(fault_proxy.answer(429, **{"Retry-After": "1"}), id="429"),
        pytest.param(fault_proxy.answer(503), id="503"),
        pytest.param(fault_proxy.answer(500), id="500"),
    ],
)
def test_no_event_is_lost_and_none_told_twice(field, fault):
    expect_every_event_once(field, fault)


def test_fault_57_what_happens_between_two_watches_is_not_lost(field):
    proxy = field.proxy()
    backend = field.backend(through=proxy, watch_times=FAST)
    (ended, deleted) = send(backend, 2)
    eventually(lambda: proxy.count("GET", WATCH), "the watch is open")
    gap = proxy.on("GET", "/pods?", fault_proxy.answer(503), times=None)
    watches = proxy.count("GET", WATCH)
    eventually(lambda: proxy.count("GET", WATCH) > watches, "the watch is cut off")
    field.kubelet.end(field.kubelet.name_of(ended.token), 0)
    field.kubelet.delete(field.kubelet.name_of(deleted.token))
    gap.times = 0
    await_endings(backend, [ended, deleted])
    told = {one.token: one for one in backend.observe()}
    assert told[ended.token].ok
    assert told[deleted.token].gone


def test_what_vanished_while_the_version_expired_is_gone_only_by_its_name(field):
    proxy = field.proxy()
    backend = field.backend(through=proxy, watch_times=FAST)
    (kept, deleted) = send(backend, 2)
    eventually(lambda: proxy.count("GET", WATCH), "the watch is open")
    by_name = proxy.on("GET", f"-{deleted.token}", fault_proxy.answer(503), times=None)
    gap = proxy.on("GET", "/pods?", fault_proxy.answer(410), times=None)
    watches = proxy.count("GET", WATCH)
    eventually(lambda: proxy.count("GET", WATCH) > watches, "the watch is cut off")
    field.kubelet.delete(field.kubelet.name_of(deleted.token))
    gap.times = 0
    eventually(lambda: (backend.observe(), proxy.count("GET", f"-{deleted.token}"))[1], "it is looked for")
    assert backend.observe() == []
    by_name.times = 0
    await_endings(backend, [deleted])
    assert backend.observe()[0].gone
    assert proxy.count("GET", f"-{kept.token}") == 0


def test_a_normal_410_makes_no_noise(field, caplog):
    proxy = field.proxy()
    proxy.on("GET", WATCH, fault_proxy.answer(410), times=1)
    proxy.on("GET", WATCH, fault_proxy.expired_event, times=1)
    backend = field.backend(through=proxy, watch_times=FAST)
    with caplog.at_level(logging.INFO, logger="dispatcher"):
        submissions = send(backend)
        eventually(lambda: proxy.count("GET", WATCH) > 2, "both have happened")
        field.kubelet.end(field.kubelet.name_of(submissions[0].token), 0)
        await_endings(backend, submissions)
    assert caplog.records == []


def test_a_cluster_that_is_away_is_told_once(field, caplog):
    proxy = field.proxy()
    away = proxy.on("GET", "/pods?", fault_proxy.answer(500), times=None)
    backend = field.backend(through=proxy, watch_times=WatchTimes(first_pause=0.1, shortest_round=0.1))
    with caplog.at_level(logging.INFO, logger="dispatcher"):
        submissions = send(backend)
        eventually(lambda: proxy.count("GET", "/pods?") > 3, "it is tried several times")
        away.times = 0
        field.kubelet.end(field.kubelet.name_of(submissions[0].token), 0)
        await_endings(backend, submissions)
        # An ending may be told a moment before the list that shows it has been read to its end.
        eventually(lambda: "are seen again" in caplog.records[-1].getMessage(), "that is told, too")
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "are not seen at the moment" in warnings[0].getMessage()


def test_lists_are_read_page_by_page(field, monkeypatch):
    from dispatcher.backends.kubernetes import client

    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    submissions = send(field.backend(), 5)
    for submission in submissions:
        field.kubelet.end(field.kubelet.name_of(submission.token), 0)
    proxy = field.proxy()
    backend = field.backend(through=proxy, job="2")
    from dispatcher.backends.base import Artefact

    backend.watch([Artefact(submission.token, submission.kind) for submission in submissions])
    await_endings(backend, submissions)
    assert proxy.count("GET", "continue=") == 2
