# SPDX-License-Identifier: Apache-2.0
"""Results on Redis are heard of as they are stored, and nothing is missed when that breaks."""

from __future__ import annotations

import logging
import uuid

import pytest
import redis
from celery import states

from dispatcher.backends.base import Observation
from dispatcher.backends.celery.app import create_app
from dispatcher.backends.celery.events import ANSWER_SECONDS, PING_SECONDS, ResultEvents
from dispatcher.backends.celery.results import RECONCILE_SECONDS, KeyValueStore, Results
from dispatcher.backends.celery.watched import Changes
from tests.support.backend_harness import eventually
from tests.support.celery_backend import make_conf
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.needs("redis")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def client(server):
    with redis.Redis.from_url(server.url) as connected:
        connected.flushall()
        yield connected


class Following:
    """Tells what has changed of the tokens that are followed, as the backend does."""

    def __init__(self, results):
        self._results = results
        self._tokens = frozenset()
        self.close = results.close

    def follow(self, tokens):
        changes = Changes(tokens - self._tokens, self._tokens - tokens)
        self._tokens = tokens
        return self._results.follow(changes)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def read(monkeypatch):
    """Return the tokens that were read, by statement."""
    statements = []
    read = KeyValueStore.read

    def counted(self, tokens):
        statements.append(set(tokens))
        return read(self, tokens)

    monkeypatch.setattr(KeyValueStore, "read", counted)
    return statements


@pytest.fixture
def open_results(client, clock):
    opened = []

    def open_one(url):
        results = Following(Results(create_app(make_conf(url, url), 5.0)[1], clock))
        opened.append(results)
        return results

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def results(open_results, server):
    return open_results(server.url)


@pytest.fixture
def worker(server):
    """Return a result back end as a worker has it."""
    backend = create_app(make_conf(server.url, server.url), 5.0)[1]()
    yield backend
    backend.client.connection_pool.disconnect()


def tokens(count):
    return frozenset(str(uuid.uuid4()) for _ in range(count))


def test_what_runs_is_read_once_and_what_ends_is_heard_of(results, worker, read):
    running = tokens(50)
    assert results.follow(running) == []
    one = next(iter(running))
    worker.mark_as_done(one, None)
    worker.mark_as_done(str(uuid.uuid4()), None)  # somebody else's

    expected = [Observation(one, ok=True, anonymous=True)]
    eventually(lambda: results.follow(running) == expected, "the ending is heard of")
    assert results.follow(running) == expected
    assert results.follow(running - {one}) == []

    assert read == [running]


def test_a_result_that_was_stored_before_anybody_asked_is_found(results, worker, read):
    before = tokens(2)
    results.follow(before)
    late = str(uuid.uuid4())
    worker.mark_as_done(late, None)

    assert results.follow(before | {late}) == [Observation(late, ok=True, anonymous=True)]

    assert read == [before, {late}]


def test_the_last_result_counts(results, worker):
    """A delivery that was killed stores a failure, and the one that runs ends well."""
    running = tokens(1)
    (token,) = running
    results.follow(running)
    worker.mark_as_failure(token, RuntimeError("Worker exited prematurely"))
    eventually(lambda: [one.ok for one in results.follow(running)] == [False], "the failure is heard of")
    worker.store_result(token, None, states.STARTED)
    worker.mark_as_done(token, {"claimant": "one"})

    expected = [Observation(token, ok=True, claimant="nonce:one")]
    eventually(lambda: results.follow(running) == expected, "the success is heard of")


def test_what_was_stored_while_the_subscription_was_cut_is_found(results, worker, client, read):
    running = tokens(3)
    results.follow(running)
    client.client_kill_filter(_type="pubsub")
    done = next(iter(running))
    worker.mark_as_done(done, None)

    expected = [Observation(done, ok=True, anonymous=True)]
    eventually(lambda: results.follow(running) == expected, "the ending is found")

    assert running in read[1:]
    # And from then on it is heard of again.
    eventually(lambda: results.follow(running) and client.pubsub_numpat() == 1, "the subscription is back")
    read.clear()
    other = next(iter(running - {done}))
    worker.mark_as_done(other, None)
    eventually(lambda: len(results.follow(running)) == 2, "the other ending is heard of")
    assert not any(read)


def test_what_was_never_published_is_found_now_and_then(results, worker, client, clock):
    running = tokens(2)
    results.follow(running)
    done = next(iter(running))
    worker.mark_as_done("elsewhere", None)
    client.rename(worker.get_key_for_task("elsewhere"), worker.get_key_for_task(done))
    assert results.follow(running) == []

    clock.now += RECONCILE_SECONDS

    # In between the subscription was asked whether it is still there.
    eventually(
        lambda: results.follow(running) == [Observation(done, ok=True, anonymous=True)], "the ending is found"
    )


def test_a_subscription_that_does_not_answer_is_given_up(worker, server, clock):
    events = ResultEvents(worker, clock)
    server.hang()
    try:
        assert list(events.drain()) == []
        clock.now += PING_SECONDS + 0.1
        assert list(events.drain()) == []
        clock.now += ANSWER_SECONDS + 0.1
        with pytest.raises(redis.ConnectionError, match="does not answer"):
            list(events.drain())
    finally:
        server.resume()
        events.close()


def test_a_subscription_that_answers_is_kept(worker, clock):
    events = ResultEvents(worker, clock)
    for _ in range(3):
        clock.now += PING_SECONDS + 0.1
        list(events.drain())
        eventually(lambda: list(events.drain()) == [] and not events._pinged_at, "it answers")
    events.close()


def test_where_a_subscription_is_refused_everything_is_read(
    open_results, server, client, worker, read, caplog
):
    client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "resetchannels", "+@all")
    results = open_results(server.url.replace("redis://", "redis://reader:secret@"))
    running = tokens(2)
    caplog.set_level(logging.WARNING, "dispatcher")
    for _ in range(3):
        assert results.follow(running) == []
    done = next(iter(running))
    worker.mark_as_done(done, None)

    assert results.follow(running) == [Observation(done, ok=True, anonymous=True)]

    assert read == [running] * 4
    assert len([one for one in caplog.records if "refuses a subscription" in one.message]) == 1
