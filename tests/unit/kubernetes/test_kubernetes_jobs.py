# SPDX-License-Identifier: Apache-2.0
"""Calls in threads."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from dispatcher.backends.kubernetes.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield an event that blocks jobs, and open it at the end so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def jobs(gate: threading.Event) -> Iterator[Jobs]:
    made = Jobs(1)
    yield made
    gate.set()
    made.stop()


def test_no_thread_is_started_before_the_first_job():
    before = threading.active_count()
    Jobs(4).stop()
    assert threading.active_count() == before


def test_a_result_comes_back(jobs):
    future = jobs.start("key", lambda: 3)
    jobs.wait([future], 10)
    assert future.result() == 3


def test_one_job_for_each_key_at_a_time(jobs, gate):
    first = jobs.start("key", gate.wait)
    assert jobs.start("key", gate.wait) is first
    gate.set()
    first.result(10)
    assert jobs.start("key", lambda: None) is not first


def test_what_has_not_begun_in_time_never_does(jobs, gate):
    running = jobs.start("one", gate.wait)
    waiting = jobs.start("two", gate.wait)
    # The pool has one thread: nothing else can begin before the gate opens.
    jobs.wait([running, waiting], 0.01)
    assert waiting.cancelled()
    assert not running.cancelled()
    gate.set()
    assert running.result(10)
    assert jobs.start("two", lambda: 5).result(10) == 5


def test_an_unexpected_error_is_logged(jobs, caplog):
    def fail() -> None:
        raise KeyError("bug")

    with caplog.at_level(logging.ERROR):
        future = jobs.start("key", fail)
        jobs.wait([future], 10)
        jobs.start("other", lambda: None).result(10)
    assert isinstance(future.exception(), KeyError)
    assert "A call to the cluster failed" in caplog.text
