# SPDX-License-Identifier: Apache-2.0
"""Forks schedulers and Celery workers from a process that has imported Airflow already.

Each one starts in a fraction of a second, so that a test can kill many. ``python -m tests.support.nursery``
reads what to fork from stdin, one line of JSON each, and answers with the process id.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]

PRELOADED = (
    "airflow.jobs.scheduler_job_runner",
    "airflow.providers.celery.executors.celery_executor_utils",
    "dispatcher.backends.celery.backend",
    "dispatcher.backends.kubernetes.access",
    "dispatcher.backends.kubernetes.backend",
    "dispatcher.executor",
    "dispatcher.fence.plugin",
    "kubernetes_asyncio.client",
    "redis",
    "tests.support.players",
    "workers.celery_app",
)
"""What takes seconds to import."""

HELD = re.compile(r"executor\.(queued_tasks|queued_callbacks|queued\[[^\]]*\]|running) \((\d+)\)")
"""What takes slots in an executor, as its dump names it; ``running`` is the last of it."""


@dataclass(frozen=True, slots=True)
class Forked:
    """A process that was forked.

    :param name: a name that no other one has
    :param log: its output
    """

    name: str
    pid: int
    log: Path

    def kill(self) -> None:
        """Kill it, so that it can do nothing more; its threads and all it holds are gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Send SIGTERM, and do not wait."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def stall(self) -> None:
        """Let it stand still; see ``go_on``."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on where it stands still."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def slots(self, seconds: float = 60) -> int:
        """Return how many slots a scheduler's executor holds; it writes that on SIGUSR2.

        :param seconds: how long to wait for it
        """
        self._wait(lambda: "Adopting or resetting" in self.log.read_text(errors="replace"), seconds)
        before = len(self._dumps())
        os.kill(self.pid, signal.SIGUSR2)
        self._wait(lambda: "running" in dict(self._dumps()[before:]), seconds)
        return sum(count for _, count in self._dumps()[before:])

    def _wait(self, ready: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"{self.name} says nothing; its log ends: {self.tail()}"
            time.sleep(0.05)

    def tail(self) -> str:
        """Return the end of its output."""
        return self.log.read_text(errors="replace")[-3000:]

    def _dumps(self) -> list[tuple[str, int]]:
        return [(name, int(count)) for name, count in HELD.findall(self.log.read_text(errors="replace"))]


class Nursery:
    """The process that forks; use it as a context manager; what is left is killed at the end.

    :param folder: for the logs
    :param env: the environment of all that is forked
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = dict(env)
        self._forked: list[Forked] = []

    def __enter__(self) -> Self:
        with (self._folder / "nursery.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                cwd=ROOT,
                text=True,
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        # It kills what it has forked when its stdin ends, also where this process dies.
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def scheduler(self, **settings: str) -> Forked:
        """Start a scheduler: what ``airflow scheduler`` runs, with a job of its own.

        :param settings: further environment variables
        """
        return self._fork("scheduler", settings=settings)

    def worker(self, *queues: str, stock: bool = False) -> Forked:
        """Start a Celery worker of our app whose bodies are played.

        :param queues: what it consumes
        :param stock: it knows no launch tokens, and a claim that is refused fails its Celery task
        """
        return self._fork("stock_worker" if stock else "worker", ",".join(queues))

    def _fork(self, role: str, *arguments: str, settings: Mapping[str, str] | None = None) -> Forked:
        assert self._process.stdin
        assert self._process.stdout
        name = f"{role}-{len(self._forked) + 1}"
        log = self._folder / f"{name}.log"
        order = {
            "role": role,
            "name": name,
            "log": str(log),
            "arguments": arguments,
            "settings": dict(settings or {}),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            with suppress(ValueError):
                forked = Forked(name, int(line), log)
                self._forked.append(forked)
                return forked
        raise RuntimeError(f"the nursery has ended; see {self._folder / 'nursery.log'}")


def run_scheduler(_name: str) -> None:
    """Do what ``airflow scheduler`` does."""
    from airflow.jobs.job import Job, run_job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    runner = SchedulerJobRunner(job=Job())
    run_job(job=runner.job, execute_callable=runner._execute)


def run_worker(name: str, queues: str, *, stock: bool = False) -> None:
    """Consume queues under the guard's name of the task, and play the bodies.

    :param name: of the worker
    :param queues: with commas between them
    :param stock: play without a guard
    """
    from celery.signals import celeryd_init

    from workers.celery_app import app
    from workers.celery_guard import TASK_NAME

    def replace_task(instance: Any, **_: Any) -> None:
        instance.app.tasks.unregister(TASK_NAME)
        instance.app.task(name=TASK_NAME, track_started=False, shared=False)(_playing(name, stock))

    celeryd_init.connect(replace_task, weak=False)
    command = ["worker", "-Q", queues, "-n", f"{name}@tests", "--pool", "threads", "--skip-serve-logs"]
    app.worker_main([*command, "--loglevel", "INFO"])


def _playing(place: str, stock: bool) -> Any:
    import uuid

    from celery.exceptions import Ignore

    from tests.support.players import player_of_this_process

    player = player_of_this_process()

    def execute_as_stock(payload: str) -> None:
        if not player.play(payload, None, place):
            raise RuntimeError("the API server refused it")

    def execute_workload(payload: str) -> dict[str, str]:
        nonce = str(uuid.uuid4())
        if not player.play(payload, nonce, place):
            raise Ignore
        return {"claimant": nonce}

    return execute_as_stock if stock else execute_workload


def run_stock_worker(name: str, queues: str) -> None:
    """Do as ``run_worker``, without a guard."""
    run_worker(name, queues, stock=True)


ROLES = {"scheduler": run_scheduler, "worker": run_worker, "stock_worker": run_stock_worker}


def main() -> None:
    """Import what all need, and fork what is asked for until stdin ends."""
    for module in PRELOADED:
        importlib.import_module(module)
    # They are waited for at the very end, so that no other process gets the id of one that was killed.
    forked = []
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(order)
        forked.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in forked:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["settings"])
    try:
        ROLES[order["role"]](order["name"], *order["arguments"])
    except BaseException:  # noqa: BLE001  # the one place that tells of it
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
