# SPDX-License-Identifier: Apache-2.0
"""Real Celery workers on a real or an embedded broker."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from tests.support import processes
from tests.support.guard_host import SETTINGS

START_SECONDS = 90
END_SECONDS = 40

PLAIN = [sys.executable, "-m", "celery", "-A", "workers.celery_app", "worker", "-Q", "default,callbacks"]
"""The worker command of our own app."""

AIRFLOW = [sys.executable, "-m", "airflow", "celery", "worker", "-q", "default,callbacks"]
"""The stock worker command."""


@contextmanager
def embedded_broker() -> Iterator[str]:
    """Serve the Redis protocol from this process and yield the URL."""
    from fakeredis import TcpFakeServer

    server = TcpFakeServer(("127.0.0.1", 0))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"redis://127.0.0.1:{server.socket.getsockname()[1]}/0"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class CeleryWorker:
    """A worker that is being started; use it as a context manager.

    :param command: ``PLAIN`` or ``AIRFLOW``, and options.
    :param broker: URL of the broker.
    :param server: URL of the execution API.
    :param folder: where the log and the marks of workloads go.
    :param env: further environment variables.
    :param results: URL of the result back end; the broker where it is not given.
    """

    def __init__(
        self,
        command: list[str],
        broker: str,
        server: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        *,
        results: str | None = None,
    ) -> None:
        results = results or broker
        self._marks = folder / "marks"
        self._log = folder / "worker.log"
        self._command = command
        self._folder = folder
        self._env = {
            **os.environ,
            **SETTINGS,
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": server,
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": results,
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "1",
            "GUARD_MARKS": str(self._marks),
            **(env or {}),
        }
        self.app = Celery("tests", broker=broker, backend=results, set_as_current=False)
        # What is sent is not subscribed to: a result object that outlives the broker would try to reconnect.
        self._sender = Celery("tests", broker=broker, backend="disabled://", set_as_current=False)
        for app in (self.app, self._sender):
            # One connection for each question is enough here, and none stays open.
            app.conf.broker_pool_limit = 0

    def __enter__(self) -> CeleryWorker:
        root = Path(__file__).parents[2]
        self.process = processes.start(self._command, self._log, self._env, root)
        try:
            self.process.wait_until(lambda: " ready." in self.log(), START_SECONDS)
        except processes.ProcessEndedError:
            self.process.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.stop()
        self.app.close()
        self._sender.close()

    def log(self) -> str:
        """Return everything that the worker has written."""
        return self._log.read_text(errors="replace")

    def send(self, workload: Any, message_id: str | None = None, queue: str = "default") -> str:
        """Send a workload as executors do and return the id of the message."""
        return self.send_payload(workload.model_dump_json(), message_id, queue)

    def send_payload(self, payload: str, message_id: str | None = None, queue: str = "default") -> str:
        """Send any payload to the task of executors and return the id of the message."""
        message_id = message_id or str(uuid.uuid4())
        self._sender.send_task("execute_workload", args=[payload], task_id=message_id, queue=queue)
        return message_id

    def stored(self, message_id: str) -> dict[str, Any]:
        """Return what the result back end holds for a message."""
        return dict(self.app.backend.get_task_meta(message_id, cache=False))

    def state(self, message_id: str) -> str:
        """Return the state that the result back end holds for a message."""
        return str(self.stored(message_id)["status"])

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready`` says yes, and fail with the worker's log if it does not."""
        self.process.wait_until(ready, END_SECONDS)

    def busy_processes(self) -> list[psutil.Process]:
        """Return the processes of the pool that run a workload now."""
        children = psutil.Process(self.process.pid).children()
        # What ran before keeps the title of a supervisor, but has no task to supervise.
        return [one for one in children if "airflow supervisor" in " ".join(one.cmdline()) and one.children()]

    def wait_idle(self) -> None:
        """Wait until every message was acknowledged: none is queued, none is held by the worker."""
        with self.app.connection_for_read() as connection:
            redis = connection.default_channel.client
            self.wait_for(lambda: not any(redis.exists(key) for key in ("default", "callbacks", "unacked")))

    def open_gate(self) -> None:
        """Let the bodies go on that wait at the gate; see ``gate``."""
        self._marks.with_name("gate").touch()

    def close_gate(self) -> None:
        """Let bodies wait at the gate again."""
        self._marks.with_name("gate").unlink(missing_ok=True)

    def take_marks(self) -> list[str]:
        """Return the marks that workloads left since the last call."""
        if not self._marks.exists():
            return []
        marks = self._marks.read_text().splitlines()
        self._marks.unlink()
        return marks


def wait_until(ready: Callable[[], bool], seconds: float) -> None:
    """Wait until ``ready`` says yes.

    :raises TimeoutError: it did not in time.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {seconds:.0f} s")
        time.sleep(processes.POLL_SECONDS)
