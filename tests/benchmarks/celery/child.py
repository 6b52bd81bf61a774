# SPDX-License-Identifier: Apache-2.0
"""One measurement in a process of its own, as the scheduler is one: ``child.py WHAT WAY COUNT``.

The last line of stdout is the result as JSON.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from dispatcher.compat import tasks_waiting_in
from tests.benchmarks.celery import ground
from tests.benchmarks.running import footprint

if TYPE_CHECKING:
    from airflow.executors.base_executor import BaseExecutor

LOOP_SECONDS = 0.5
"""Between two heartbeats of a scheduler that has nothing else to do."""

IDLE_TURNS = 120
"""Heartbeats with nothing to take in that are measured: a minute, so what is done once in it counts once."""

SETTLING_TURNS = 12
"""Heartbeats before that."""

DONE = 100
DONE_TURNS = 3
WARM_UP = 5_000
BATCH = 2_000
LARGEST_GROWTH_MB = 10


def publish(way: str, count: int) -> dict[str, Any]:
    """Publish workloads through heartbeats, and tell what it cost."""
    with ground.started(way) as executor:
        # The first loops import and connect: no measurement of publishing.
        ground.queue(executor, 5, "first")
        _drive(executor)
        ground.queue(executor, count, "measured")
        started = time.monotonic()
        blocked = _drive(executor)
        seconds = time.monotonic() - started
        there = ground.messages_waiting()
        assert there == count + 5, f"{there} messages instead of {count + 5}"
        return {
            "per_second": count / seconds,
            "longest_ms": 1000 * max(blocked),
            "heartbeats": len(blocked),
        }


def _drive(executor: BaseExecutor) -> list[float]:
    """Run the scheduler's loop until everything is sent; return what its turns took, in seconds."""
    blocked = []
    deadline = time.monotonic() + 300
    while tasks_waiting_in(executor):
        assert time.monotonic() < deadline, "not everything was sent in time"
        started = time.monotonic()
        executor.heartbeat()
        executor.get_event_buffer()
        blocked.append(time.monotonic() - started)
    return blocked


def watch(way: str, count: int) -> dict[str, Any]:
    """Wait for workloads, and tell what a heartbeat costs with none and with some of them finished."""
    with ground.started(way) as executor:
        ground.queue(executor, count, "watched")
        _drive(executor)
        ground.claim_all(executor)
        # That all were claimed at once is the benchmark's doing, and is taken in before anything is measured.
        _turns(executor, SETTLING_TURNS)
        idle = _turns(executor, IDLE_TURNS)
        result = {
            # Not the median: what is done only now and then is part of it.
            "idle_ms": 1000 * statistics.mean(idle),
            "longest_idle_ms": 1000 * max(idle),
            "median_idle_ms": 1000 * statistics.median(idle),
            "rss_mb": footprint(),
        }
        done = []
        for _ in range(DONE_TURNS):
            waiting = len(executor.running)
            ground.finish(executor, DONE)
            done.append(_turn(executor))
            assert len(executor.running) == waiting - DONE
            _turn(executor)
        return {**result, "done_ms": 1000 * statistics.median(done)}


def _turns(executor: BaseExecutor, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        time.sleep(LOOP_SECONDS)
        taken.append(_turn(executor))
    return taken


def _turn(executor: BaseExecutor) -> float:
    started = time.monotonic()
    executor.heartbeat()
    executor.get_event_buffer()
    return time.monotonic() - started


def growth(_way: str, count: int) -> dict[str, Any]:
    """Send, observe and remove launches in many batches, and tell what that leaves in memory."""
    import psutil

    from dispatcher.backends.base import Artefact
    from dispatcher.domain.workload import WorkloadKind
    from tests.support.backend_harness import make_submission

    process = psutil.Process()
    backend = ground.make_backend()
    backend.start("1")

    def send(many: int) -> tuple[float, int]:
        for _ in range(many // BATCH):
            batch = {
                str(token): make_submission(token=str(token))
                for token in (uuid.uuid4() for _ in range(BATCH))
            }
            artefacts = [Artefact(token, WorkloadKind.TASK) for token in batch]
            ground.send_all(backend, batch)
            backend.observe()
            backend.remove(artefacts)
            ground.empty_queues()
        gc.collect()
        return footprint(), len(process.net_connections())

    before, sockets_before = send(WARM_UP)
    after, sockets_after = send(count)
    backend.stop()
    assert after - before < LARGEST_GROWTH_MB, f"grew by {after - before:.1f} MB over {count} sends"
    assert sockets_after <= sockets_before
    return {"grew_mb": after - before, "sockets": sockets_after}


def raw(_way: str, count: int) -> dict[str, Any]:
    """Push ready-made messages in pipelines, which is as fast as Redis can be sent anything."""
    return {"per_second": ground.push_bare(count)}


if __name__ == "__main__":
    measurement = {"publish": publish, "watch": watch, "growth": growth, "raw": raw}[sys.argv[1]]
    print(json.dumps(measurement(sys.argv[2], int(sys.argv[3]))))
