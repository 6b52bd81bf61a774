# SPDX-License-Identifier: Apache-2.0
"""However often something is sent and observed, the scheduler stays one process of the same size."""

from __future__ import annotations

import gc
import threading
import tracemalloc

import psutil
import pytest
import redis

from dispatcher.backends.base import Artefact, Sent
from dispatcher.domain.workload import WorkloadKind
from tests.support.backend_harness import eventually, make_submission
from tests.support.celery_backend import QUEUE, make_backend, make_conf

pytestmark = pytest.mark.needs("redis")

ROUNDS = 20
SINGLE_SENDS = 20


@pytest.fixture
def backend(redis_url):
    backend = make_backend(make_conf(redis_url, redis_url))
    backend.start("1")
    yield backend
    backend.stop()


def send_observe_remove(backend, count):
    batch = [make_submission() for _ in range(count)]

    def sent():
        return all(isinstance(one, Sent) for one in backend.submit(batch).values())

    eventually(sent, "the batch is sent")
    backend.observe()
    backend.remove([Artefact(one.token, WorkloadKind.TASK) for one in batch])


def test_fault_33_memory_and_sockets_are_flat_after_many_sends(backend, redis_url):
    """Known fault 33: an app with its pools was made for each send. The benchmark sends 50,000."""
    own = psutil.Process()

    def rounds():
        for _ in range(ROUNDS):
            send_observe_remove(backend, 100)
        for _ in range(SINGLE_SENDS):
            send_observe_remove(backend, 1)
        with redis.Redis.from_url(redis_url) as client:
            client.delete(QUEUE)
        gc.collect()

    rounds()
    sockets = len(own.net_connections())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        rounds()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    # Not equal: what tests before this one left open may be closed meanwhile.
    assert len(own.net_connections()) <= sockets
    assert grown < 100 * (ROUNDS * 100 + SINGLE_SENDS), "bytes: a tenth of a message each"


def test_fault_34_sending_and_observing_forks_nothing_and_waits_for_no_other_thread(backend):
    """Known fault 34: a fork of a threaded scheduler copied a held lock, and the pool waited for ever."""
    own = psutil.Process()
    before = {child.pid for child in own.children(recursive=True)}
    held, done = threading.Lock(), threading.Event()
    seen = set()

    def watch_children():
        while not done.wait(0.01):
            seen.update(child.pid for child in own.children(recursive=True))

    watcher = threading.Thread(target=watch_children)
    watcher.start()
    try:
        with held:
            for _ in range(5):
                send_observe_remove(backend, 100)
    finally:
        done.set()
        watcher.join()

    assert seen <= before
