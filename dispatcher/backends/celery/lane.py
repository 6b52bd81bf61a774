# SPDX-License-Identifier: Apache-2.0
"""A thread that does the calls to one service, so that a call that hangs never holds up the scheduler loop.

Socket time-outs alone are not enough: name resolution, a TLS handshake and most database drivers know none.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

Work = tuple[Future[Any], "Callable[[], Any]"]


class Lane:
    """Does one piece of work at a time in a daemon thread, which is started with the first one.

    It belongs to one thread, the caller's.

    :param name: name of the thread
    :param give_up_after: seconds after which work that has not come back is given up: a new thread takes
        over, and what the old one still returns is thrown away
    :param on_give_up: called then; what the old thread uses must not be used by the new one
    """

    def __init__(self, name: str, give_up_after: float, on_give_up: Callable[[], None]) -> None:
        self._name = name
        self._give_up_after = give_up_after
        self._on_give_up = on_give_up
        self._work: SimpleQueue[Work | None] | None = None
        self._current: Future[Any] | None = None
        self._started_at = 0.0

    def start(self, work: Callable[[], T]) -> Future[T] | None:
        """Begin ``work`` and return its future; the caller waits as long as it likes.

        :param work: what to do; its exception ends up in the future
        :returns: None while an earlier piece of work is still being done
        """
        self.expire()
        if self._current is not None and not self._current.done():
            return None
        if self._work is None:
            self._work = SimpleQueue()
            threading.Thread(target=_run, args=(self._work,), name=self._name, daemon=True).start()
        future: Future[T] = Future()
        self._current = future
        self._started_at = time.monotonic()
        self._work.put((future, work))
        return future

    def expire(self) -> None:
        """Give up work that has not come back for too long: its future ends with ``TimeoutError``."""
        current = self._current
        if current is None or current.done() or time.monotonic() - self._started_at < self._give_up_after:
            return
        with suppress(InvalidStateError):  # it has come back just now
            current.set_exception(TimeoutError(f"no answer within {self._give_up_after:g} s"))
        self.close()
        self._on_give_up()

    def close(self) -> None:
        """Let the thread end once it has done what it is doing."""
        if self._work is not None:
            self._work.put(None)
        self._work = None
        self._current = None


class Patience:
    """How long a service is waited for: not at all once it was too slow, until it is quick again.

    One that is slow and not away would hold up each turn of the scheduler's loop for as long as it may.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slow = False

    def wait(self, future: Future[Any], seconds: float) -> bool:
        """Wait for work of a lane, as ``came_back`` does.

        :param future: what the lane is doing
        :param seconds: how long to wait at most, and how long it may take to count as quick
        """
        begun = self._clock()
        if came_back(future, 0.0 if self._slow else seconds):
            return True
        if seconds:
            self._slow = True
            future.add_done_callback(lambda _: self._note(begun, seconds))
        return False

    def _note(self, begun: float, seconds: float) -> None:
        self._slow = self._clock() - begun > seconds


def came_back(future: Future[Any], seconds: float) -> bool:
    """Wait for work of a lane; its error is left in the future.

    :param future: what the lane is doing
    :param seconds: how long to wait at most
    """
    return bool(wait((future,), timeout=seconds).done)


def _run(queue: SimpleQueue[Work | None]) -> None:
    while (item := queue.get()) is not None:
        future, work = item
        with suppress(InvalidStateError):  # it was given up
            try:
                value = work()
            except BaseException as exc:  # noqa: BLE001  # whoever holds the future decides what it means
                future.set_exception(exc)
            else:
                future.set_result(value)
                del value
        # Waiting for the next piece of work must not keep the last one alive.
        del item, future, work
