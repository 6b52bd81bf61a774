# SPDX-License-Identifier: Apache-2.0
"""Run the soak and print its result: progress on stderr, one line of JSON at the end of stdout."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import environment

os.environ[environment.DATABASE_VARIABLE] = "postgres"
AIRFLOW = environment.prepare()

from tests.benchmarks.running import anything_missing, migrated, say  # noqa: E402
from tests.benchmarks.soak.scheduler import DAG_ID, Scheduler  # noqa: E402
from tests.support import service_dispatching as run  # noqa: E402
from tests.support import soaking_dag  # noqa: E402
from tests.support.api_server import ApiServers  # noqa: E402
from tests.support.celery_worker import PLAIN, CeleryWorker  # noqa: E402
from tests.support.redis_server import RedisServer  # noqa: E402

VISIBILITY_SECONDS = 20
WORKERS = 2
CONCURRENCY = 8
REDIS_RESTARTS = 2
AWAY_SECONDS = 10
KILL_EVERY = 120
"""Seconds between two kills of a worker, on average."""

DRAIN_SECONDS = 600
"""How long the last tasks may take once no more are queued."""

PARALLELISM = 200


class Crew:
    """The workers; each has a folder of its own, so that it is known what ran where.

    :param broker: URL of Redis
    :param server: URL of the execution API
    """

    def __init__(self, broker: str, server: str, folder: Path) -> None:
        self._broker, self._server, self._folder = broker, server, folder
        self._started = 0
        self._alive: list[tuple[CeleryWorker, Path]] = []
        self.killed: list[Path] = []
        self.folders: list[Path] = []

    def start(self) -> None:
        """Start one more worker and wait until it is ready."""
        self._started += 1
        folder = self._folder / f"worker-{self._started}"
        folder.mkdir()
        command = [*PLAIN, "-n", f"worker-{self._started}@soak", "--skip-serve-logs"]
        env = {"AIRFLOW__CELERY__WORKER_CONCURRENCY": str(CONCURRENCY)}
        worker = CeleryWorker(command, self._broker, self._server, folder, env)
        worker.__enter__()
        self._alive.append((worker, folder))
        self.folders.append(folder)

    def kill_one(self) -> None:
        """Kill a worker with all it runs; the caller starts another."""
        worker, folder = self._alive.pop(random.randrange(len(self._alive)))
        os.killpg(worker.process.pid, signal.SIGKILL)
        worker.__exit__()
        self.killed.append(folder)

    def stop(self) -> None:
        """End all workers."""
        while self._alive:
            self._alive.pop()[0].__exit__()


def doubles(crew: Crew) -> int:
    """Return how many tries had their body run more than once although no worker died in it."""
    began: Counter[str] = Counter()
    died: set[str] = set()
    for folder in crew.folders:
        file = folder / "marks"
        marks = file.read_text().splitlines() if file.exists() else []
        ended = {mark.partition(" ")[2] for mark in marks if mark.startswith("ended")}
        for mark in marks:
            verb, _, what = mark.partition(" ")
            if verb == "began":
                began[what] += 1
                if folder in crew.killed and what not in ended:
                    died.add(what)
    return sum(count > 1 and what not in died for what, count in began.items())


def soak(minutes: float, stack: ExitStack, folder: Path) -> dict[str, Any]:
    """Run it and return what was counted."""
    servers = ApiServers(AIRFLOW.home)
    stack.callback(servers.stop)
    server = servers(with_plugin=True).url + "/execution/"
    broker = stack.enter_context(RedisServer(folder))
    os.environ["AIRFLOW__CELERY__BROKER_URL"] = os.environ["AIRFLOW__CELERY__RESULT_BACKEND"] = broker.url
    options = "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT"
    os.environ[options] = str(VISIBILITY_SECONDS)
    os.environ["AIRFLOW__CORE__PARALLELISM"] = str(PARALLELISM)
    crew = Crew(broker.url, server, folder)
    stack.callback(crew.stop)
    for _ in range(WORKERS):
        crew.start()
    run.place_dag(AIRFLOW.home, soaking_dag, DAG_ID, "long", "short")
    executor = stack.enter_context(run.started_executor())
    scheduler = Scheduler(executor)

    began = time.monotonic()
    end = began + 60 * minutes
    restarts = [began + 60 * minutes * (n + 1) / (REDIS_RESTARTS + 1) for n in range(REDIS_RESTARTS)]
    back_at, next_kill, next_task = 0.0, began + KILL_EVERY / 2, began
    while (now := time.monotonic()) < end or (now < end + DRAIN_SECONDS and scheduler.unfinished()):
        if now >= next_task and now < end:
            scheduler.add_task()
            next_task += 1
        if restarts and now >= restarts[0]:
            say(f"{now - began:.0f} s: Redis goes away, with everything in it")
            restarts.pop(0)
            broker.stop()
            back_at = now + AWAY_SECONDS
        if back_at and now >= back_at:
            broker.start()
            back_at = 0.0
        if now >= next_kill and now < end and not back_at:
            say(f"{now - began:.0f} s: a worker is killed; {scheduler.unfinished()} tasks are unfinished")
            crew.kill_one()
            crew.start()
            next_kill = now + random.uniform(0.5, 1.5) * KILL_EVERY
        scheduler.turn()
        time.sleep(run.LOOP_SECONDS)
    stuck = scheduler.unfinished()
    drained = time.monotonic()
    while executor.slots_occupied and time.monotonic() < drained + 120:
        scheduler.turn()
        time.sleep(run.LOOP_SECONDS)
    return {
        "minutes": minutes,
        "tasks": scheduler.counts["tasks"],
        "stuck": stuck,
        "ran_twice": doubles(crew),
        "slots_occupied": executor.slots_occupied,
        "worker_kills": len(crew.killed),
        "redis_restarts": REDIS_RESTARTS,
        "retries": scheduler.counts["retries"],
        "heartbeat_timeouts": scheduler.counts["heartbeat_timeouts"],
        "queued_timeouts": scheduler.counts["queued_timeouts"],
    }


def main() -> int:
    """Run the soak and print the result.

    :returns: 0; 1 where something came out wrong; 2 where a service is missing
    """
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=20.0)
    minutes = parser.parse_args().minutes
    if anything_missing("postgres"):
        return 2
    with migrated(AIRFLOW), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        result = soak(minutes, stack, Path(folder))
    print(json.dumps(result))
    return int(bool(result["stuck"] or result["ran_twice"] or result["slots_occupied"]))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except pytest.UsageError as exc:
        sys.exit(str(exc))
