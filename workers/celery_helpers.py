# SPDX-License-Identifier: Apache-2.0
"""The processes that run beside a Celery worker: the log server and the clean-up of stale bundles."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from airflow.configuration import conf

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

STOP_SECONDS = 10.0
"""How long a helper may take to end before it is killed, in seconds."""


class WorkerHelpers:
    """The helper processes of one worker."""

    def __init__(self) -> None:
        self._processes: list[BaseProcess] = []

    def start(self, *, log_server: bool) -> None:
        """Start the helpers that the configuration asks for.

        :param log_server: whether to serve the logs of running tasks to the API server
        """
        from airflow.utils.process_utils import set_component_mp_start_method

        set_component_mp_start_method("celery")
        if log_server:
            self._spawn("serve-logs", serve_logs)
        interval = conf.getint("dag_processor", "stale_bundle_cleanup_interval", fallback=0)
        if interval > 0:
            self._spawn("stale-bundles", remove_stale_bundles, interval)

    def stop(self) -> None:
        """End every helper; does nothing where none runs."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes.clear()

    def _spawn(self, name: str, target: Callable[..., None], *args: object) -> None:
        # Daemonic: should the worker end without its shutdown signal, Python's exit terminates them.
        process = multiprocessing.Process(target=_run, args=(target, *args), name=name, daemon=True)
        process.start()
        self._processes.append(process)


def serve_logs() -> None:
    """Serve the logs of running tasks until the process is terminated."""
    from airflow.utils.serve_logs import serve_logs as serve

    serve()  # type: ignore[no-untyped-call]


def remove_stale_bundles(interval: int) -> None:
    """Remove versions of bundles that are no longer used, again and again.

    :param interval: pause between two clean-ups, in seconds
    """
    from airflow.dag_processing.bundles.base import BundleUsageTrackingManager

    manager = BundleUsageTrackingManager()
    while True:
        time.sleep(interval)
        manager.remove_stale_bundle_versions()  # type: ignore[no-untyped-call]


def _run(target: Callable[..., None], *args: object) -> None:
    # A fork inherits Celery's handlers, which would keep SIGTERM from ending the helper. Ctrl-C goes to the
    # whole process group, but the worker still needs its helpers while it finishes what it has.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(*args)


def _end_with_parent() -> None:
    # A worker that was killed cannot end its helpers, and an orphan would keep the log server's port.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
