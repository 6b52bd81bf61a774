# SPDX-License-Identifier: Apache-2.0
"""Calls to the cluster in threads, so that the scheduler's loop waits no longer than it wants to."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

log = logging.getLogger(__name__)


class Jobs:
    """Runs jobs in a bounded pool, one for each key at a time.

    :param threads: how many run at once; none is started before the first job
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes")
        self._running: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def start(self, key: Hashable, job: Callable[[], Any]) -> Future[Any]:
        """Start a job, unless the one of this key has not ended yet; return the one that runs.

        :raises RuntimeError: the pool is stopped
        """
        with self._lock:
            running = self._running.get(key)
            if running is not None and not running.done():
                return running
            future = self._running[key] = self._pool.submit(job)
        future.add_done_callback(lambda done: self._forget(key, done))
        return future

    def wait(self, futures: Collection[Future[Any]], seconds: float) -> None:
        """Wait for jobs, but not longer than ``seconds``; those that have not begun by then never will."""
        for future in wait(futures, timeout=max(0.0, seconds)).not_done:
            future.cancel()

    def stop(self, seconds: float = 0.0) -> None:
        """Start nothing more, and wait for what runs, but not longer than ``seconds``."""
        with self._lock:
            running = list(self._running.values())
        self.wait(running, seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self, key: Hashable, done: Future[Any]) -> None:
        if not done.cancelled() and (exc := done.exception()) is not None:
            log.error("A call to the cluster failed", exc_info=exc)
        with self._lock:
            if self._running.get(key) is done:
                del self._running[key]
