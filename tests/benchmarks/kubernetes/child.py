# SPDX-License-Identifier: Apache-2.0
"""One measurement in a process of its own, as the scheduler is one: ``child.py WHAT WAY ARGUMENTS...``.

The last line of stdout is the result as JSON.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.executors.base_executor import BaseExecutor

LOOP_SECONDS = 0.02
"""What else a scheduler's loop does between two heartbeats, at the least."""

LONGEST_SECONDS = 300


def create(name: str, namespace: str, count: str) -> dict[str, Any]:
    """Create pods through heartbeats, and tell what it cost."""
    from airflow.utils.session import create_session

    from tests.benchmarks.kubernetes.ground import WARM_UP_PODS
    from tests.benchmarks.kubernetes.ways import WAYS
    from tests.support import rows

    pods = int(count)
    way = WAYS[name]
    executor = way.make()
    with create_session(scoped=False) as session:
        executor.job_id = rows.make_scheduler_job(session).id
    executor.start()
    try:
        # The first loops import and connect: no measurement of creation.
        way.queue(executor, WARM_UP_PODS, "first")
        _drive(executor, namespace, WARM_UP_PODS)
        way.queue(executor, pods, "measured")
        # What setting this up left is not to be collected in the middle.
        gc.collect()
        started, worked = time.monotonic(), time.process_time()
        blocked = _drive(executor, namespace, WARM_UP_PODS + pods)
        seconds, worked = time.monotonic() - started, time.process_time() - worked
        return {
            "pods_per_second": pods / seconds,
            "heartbeat_block_ms": 1000 * statistics.median(blocked),
            "longest_heartbeat_ms": 1000 * max(blocked),
            "heartbeats": len(blocked),
            "cpu_ms_per_pod": 1000 * worked / pods,
            "job_id": str(executor.job_id),
            **_footprint(),
        }
    finally:
        executor.end()


def _drive(executor: BaseExecutor, namespace: str, pods: int) -> list[float]:
    """Run the scheduler's loop until the executor knows that the pods are there; return what turns took."""
    blocked: list[float] = []
    deadline = time.monotonic() + LONGEST_SECONDS
    while not _all_created(executor, namespace, pods):
        assert time.monotonic() < deadline, "the pods were not created in time"
        started = time.monotonic()
        executor.heartbeat()
        executor.get_event_buffer()
        blocked.append(time.monotonic() - started)
        time.sleep(LOOP_SECONDS)
    return blocked


def _all_created(executor: Any, namespace: str, pods: int) -> bool:
    """Whether the executor counts every pod as created: the stock one has an empty queue then."""
    from dispatcher.compat import tasks_waiting_in

    if hasattr(executor, "dispatcher"):
        flights = executor.dispatcher.in_flight()
        return len(flights) >= pods and all(one.launch.external_id is not None for one in flights)
    return bool(not tasks_waiting_in(executor) and executor.task_queue.empty())


def _footprint() -> dict[str, Any]:
    import psutil

    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    return {"processes": len(family), "rss_mb": sum(one.memory_info().rss for one in family) / 2**20}


def watch(name: str, namespace: str, version: str, events: str, job_id: str) -> dict[str, Any]:
    """Replay a watch, and tell how fast it was taken in."""
    from tests.benchmarks.kubernetes import ways
    from tests.benchmarks.kubernetes.ground import rate

    if name == "ours":
        return {"events": rate(ways.watch_with_ours(namespace, version, int(events), job_id))}
    # One ending for every two events.
    return {"events": 2 * rate(ways.watch_with_stock(namespace, version, int(events), job_id))}


def memory(_name: str, namespace: str, count: str) -> dict[str, Any]:
    """Create pods and watch them, and tell how much memory that adds to a scheduler that has a cluster."""
    from airflow.utils.session import create_session

    from tests.benchmarks.kubernetes.ways import WAYS
    from tests.support import rows

    way = WAYS["ours"]
    executor = way.make()
    with create_session(scoped=False) as session:
        executor.job_id = rows.make_scheduler_job(session).id
    executor.start()
    try:
        before = _footprint()
        way.queue(executor, int(count), "watched")
        queued = _footprint()
        _drive(executor, namespace, int(count))
        after = _footprint()
    finally:
        executor.end()
    return {
        "added_mb": after["rss_mb"] - queued["rss_mb"],
        "with_queueing_mb": after["rss_mb"] - before["rss_mb"],
    }


if __name__ == "__main__":
    measure = {"create": create, "watch": watch, "memory": memory}[sys.argv[1]]
    print(json.dumps(measure(*sys.argv[2:])))
