# SPDX-License-Identifier: Apache-2.0
"""A broker or a result back end that is away: the scheduler goes on, nothing is failed, nothing is lost."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager

import pytest
from airflow.providers.celery.executors.celery_executor_utils import create_celery_app
from celery import signals

from dispatcher.backends.base import Artefact, Observation, Postponed, Sent
from dispatcher.domain.workload import WorkloadKind
from tests.support.backend_harness import eventually, make_submission
from tests.support.celery_backend import make_backend, make_conf, messages
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.needs("redis")

TIMEOUT = 1.0
"""The operation time-out of these tests, in seconds."""

BOUND = TIMEOUT + 1.0
"""How long a call may take here: the time-out, and what a busy machine adds."""

BATCH = 50


@pytest.fixture
def broker(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    with RedisServer(folder) as server:
        yield server


@pytest.fixture
def open_backend():
    opened = []

    def open_one(broker, results):
        backend = make_backend(make_conf(broker, results, operation_timeout=str(TIMEOUT)))
        backend.start("1")
        opened.append(backend)
        return backend

    yield open_one
    for backend in opened:
        backend.stop()


@pytest.fixture
def warnings(caplog):
    """Return a function that returns what this backend said since the last call."""
    caplog.set_level(logging.INFO, "dispatcher.backends.celery")

    def take():
        said = [record.message for record in caplog.records if record.name.startswith("dispatcher")]
        caplog.clear()
        return said

    return take


@pytest.fixture
def sent_singly():
    """Send messages as to a broker that cannot take many at once: somebody listens to Celery's signal."""

    def listener(**_):
        """Hear of a message."""

    signals.after_task_publish.connect(listener)
    yield
    signals.after_task_publish.disconnect(listener)


@contextmanager
def bounded(seconds=BOUND):
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def make_batch():
    return [make_submission() for _ in range(BATCH)]


def artefact(submission):
    return Artefact(submission.token, WorkloadKind.TASK)


def send(backend, *submissions):
    """Send until everything is sent, as heartbeats do."""

    def sent():
        results = backend.submit(submissions)
        return all(isinstance(result, Sent) for result in results.values())

    eventually(sent, "everything is sent")


def tokens_waiting(url):
    return {message["headers"]["id"] for message in messages(url)}


def succeed(url, token):
    """Store a success as a worker does."""
    app = create_celery_app(make_conf(url, url))
    app.backend.mark_as_done(token, None)
    app.backend.client.connection_pool.disconnect()


def test_fault_25_a_broker_that_refuses_costs_one_attempt_for_the_whole_batch(broker, open_backend, warnings):
    """Known fault 25: broker trouble while sending fails tasks, or they are never sent again."""
    backend = open_backend(broker.url, broker.url)
    broker.stop()
    batch = make_batch()

    for _ in range(3):
        with bounded():
            results = backend.submit(batch)
        assert all(result == results[batch[0].token] for result in results.values())
        assert isinstance(results[batch[0].token], Postponed)
        assert not results[batch[0].token].ambiguous
        assert "Connection refused" in results[batch[0].token].reason
    assert [line for line in warnings() if "away" in line] == [
        f"The Celery broker is away: {results[batch[0].token].reason}"
    ]

    # What Airflow does when the task has waited for too long, it does with this reason.
    assert "Connection refused" in backend.why_waiting(batch[0].token)

    broker.start()
    send(backend, *batch)
    assert backend.why_waiting(batch[0].token) is None
    assert tokens_waiting(broker.url) == {one.token for one in batch}
    assert "The Celery broker is back." in warnings()


def test_a_broker_that_was_restarted_between_two_batches_is_connected_to_again(broker, open_backend):
    backend = open_backend(broker.url, broker.url)
    send(backend, make_submission())
    broker.stop()
    broker.start()
    submission = make_submission()

    send(backend, submission)

    assert tokens_waiting(broker.url) == {submission.token}


def test_a_broker_that_went_away_between_two_batches(broker, open_backend):
    backend = open_backend(broker.url, broker.url)
    send(backend, make_submission())
    broker.stop()
    batch = make_batch()

    with bounded():
        results = backend.submit(batch)

    assert all(isinstance(result, Postponed) for result in results.values())
    assert sum(result.ambiguous for result in results.values()) <= 1


def test_a_broker_that_hangs_is_waited_for_once(broker, open_backend):
    backend = open_backend(broker.url, broker.url)
    send(backend, make_submission())
    broker.hang()
    first, second = make_batch(), make_batch()

    with bounded():
        results = backend.submit(first)
    assert all(isinstance(result, Postponed) for result in results.values())
    assert not any(result.ambiguous for result in results.values())

    with bounded(TIMEOUT * 0.8):
        results = backend.submit(second)
    assert all(isinstance(result, Postponed) and not result.ambiguous for result in results.values())

    broker.resume()
    send(backend, *first, *second)
    assert tokens_waiting(broker.url) >= {one.token for one in first + second}


def test_what_may_have_been_sent_is_observed(broker, open_backend, sent_singly):
    """Rule 6: the send that did not come back arrived, and a worker ran it."""
    backend = open_backend(broker.url, broker.url)
    send(backend, make_submission())
    broker.hang()
    submission = make_submission()
    results = backend.submit([submission])
    assert results[submission.token].ambiguous

    broker.resume()
    eventually(lambda: submission.token in tokens_waiting(broker.url), "the message arrives")
    succeed(broker.url, submission.token)

    expected = [Observation(submission.token, ok=True, anonymous=True)]
    eventually(lambda: backend.observe() == expected, "its ending is told")


def test_fault_37_nothing_follows_from_a_result_back_end_that_is_away(broker, store, open_backend, warnings):
    """Known fault 37: reading states throws, and the scheduler ends."""
    backend = open_backend(broker.url, store.url)
    submission, removed = make_submission(), make_submission()
    send(backend, submission, removed)
    for one in (submission, removed):
        succeed(store.url, one.token)
    eventually(lambda: len(backend.observe()) == 2, "the endings are told")
    store.stop()
    warnings()

    for _ in range(3):
        with bounded():
            assert backend.observe() == []
    with bounded():
        backend.remove([artefact(removed)])
    sent_meanwhile = make_submission()
    send(backend, sent_meanwhile)
    assert len([line for line in warnings() if line.startswith("The Celery result back end is away")]) == 1

    store.start()
    succeed(store.url, submission.token)
    succeed(store.url, removed.token)
    expected = [Observation(submission.token, ok=True, anonymous=True)]
    eventually(lambda: backend.observe() == expected, "the ending is told again")
    with create_celery_app(make_conf(store.url, store.url)) as app:
        eventually(
            lambda: backend.observe() == expected and app.backend.get_state(removed.token) == "PENDING",
            "the removal is made up for",
        )


def test_a_result_back_end_that_hangs_is_waited_for_once(broker, store, open_backend):
    backend = open_backend(broker.url, store.url)
    submission = make_submission()
    send(backend, submission)
    assert backend.observe() == []
    store.hang()

    with bounded():
        assert backend.observe() == []
    for _ in range(3):
        with bounded(TIMEOUT * 0.8):
            assert backend.observe() == []

    store.resume()
    succeed(store.url, submission.token)
    expected = [Observation(submission.token, ok=True, anonymous=True)]
    eventually(lambda: backend.observe() == expected, "the ending is told")


def test_a_revocation_is_sent_when_the_broker_is_back(broker, open_backend):
    backend = open_backend(broker.url, broker.url)
    submission = make_submission()
    broker.stop()
    with bounded():
        backend.revoke([artefact(submission)])
    broker.start()

    with create_celery_app(make_conf(broker.url, broker.url)) as app, app.connection_for_read() as connection:
        heard = []
        node = app.control.mailbox(connection).Node("worker")
        with node.listen(channel=connection.default_channel, callback=lambda body, _: heard.append(body)):

            def told():
                backend.observe()
                try:
                    connection.drain_events(timeout=0.1)
                except TimeoutError:
                    return heard
                return heard

            (order, *_) = eventually(told, "the workers are told")

    assert order["method"] == "revoke"
    assert order["arguments"] == {"task_id": [submission.token]}


def test_a_broker_that_is_away_is_a_problem_in_one_line(broker, open_backend):
    address = broker.url.replace("redis://", "redis://:marked-secret@")
    backend = open_backend(address, broker.url)
    broker.stop()

    with bounded():
        problem = backend.problem()

    assert problem is not None
    assert "Connection refused" in problem
    assert "start it or correct [celery] broker_url" in problem
    assert "marked-secret" not in problem
    assert "\n" not in problem


def test_a_broker_that_hangs_is_a_problem(broker, open_backend):
    backend = open_backend(broker.url, broker.url)
    broker.hang()

    with bounded():
        assert f"no answer within {TIMEOUT:g} s" in backend.problem()
    broker.resume()
