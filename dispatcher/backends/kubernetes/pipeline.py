# SPDX-License-Identifier: Apache-2.0
"""Creations in the background: the scheduler's loop hands them over, and asks later what became of them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dispatcher.backends.base import BEGIN_SECONDS, Outcome, Postponed, Underway

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Creation:
    """One creation that was handed over.

    :param handed_over: when, on the pipeline's clock (seconds)
    :param begun: the API server may have heard of it
    :param withdrawn: it is not wanted any more
    :param then: to be done when it has ended, where it was withdrawn after it had begun
    """

    token: str
    create: Callable[[], Outcome]
    handed_over: float
    begun: bool = False
    withdrawn: bool = False
    then: list[Callable[[], None]] = field(default_factory=list)


class CreationPipeline:
    """Runs creations in a bounded number of threads, one for each token at a time, first come, first served.

    :param threads: creations at once; no thread is started before it is needed
    :param clock: monotonic seconds
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = threads
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._queue: queue.SimpleQueue[_Creation | None] = queue.SimpleQueue()
        self._underway: dict[str, _Creation] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._paused_until = 0.0
        self._stopped = False
        self._lock = threading.Lock()

    def add(self, creations: Mapping[str, Callable[[], Outcome]]) -> dict[str, Underway | Postponed]:
        """Take creations on, unless one of the same token is underway; waits for nothing.

        :param creations: by launch token, in the order in which they are to begin: what creates, and raises
            nothing
        :returns: one answer for each token
        """
        with self._lock:
            answers = {token: self._take_on(token, create) for token, create in creations.items()}
            while len(self._threads) < min(self._most, len(self._underway)) and not self._stopped:
                self._start_thread()
        return answers

    def _take_on(self, token: str, create: Callable[[], Outcome]) -> Underway | Postponed:
        if self._stopped:
            return Postponed("the backend is stopped", tried=False)
        known = self._underway.get(token)
        if known is not None and known.withdrawn:
            return Postponed("its pod is being taken away", 1.0, tried=False)
        if known is not None:
            return Underway()
        if (rest := self._pause()) is not None:
            return rest
        creation = self._underway[token] = _Creation(token, create, self._clock())
        self._queue.put(creation)
        return Underway()

    def results(self) -> Mapping[str, Outcome]:
        """Return what has become of creations since the last call; waits for nothing."""
        with self._lock:
            outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    def pause(self, seconds: float) -> None:
        """Begin no creation for a while: the API server asks for that.

        :param seconds: how long; a longer pause that was asked for before stays
        """
        with self._lock:
            until = self._clock() + seconds
            if until <= self._paused_until:
                return
            fresh = self._paused_until <= self._clock()
            self._paused_until = until
        if fresh:
            log.warning("The API server asks for a pause: no pod is created for %g s", seconds)

    def withdraw(self, token: str, then: Callable[[], None]) -> bool:
        """Tell nothing more of a token; a creation that has not begun never will.

        :param then: done when the creation has ended, in another thread, if it has begun already
        :returns: whether it has begun and not ended
        """
        with self._lock:
            self._outcomes.pop(token, None)
            creation = self._underway.get(token)
            if creation is None:
                return False
            creation.withdrawn = True
            if creation.begun:
                creation.then.append(then)
                return True
            del self._underway[token]
            return False

    def is_creating(self, token: str) -> bool:
        """Whether a creation has begun and not ended."""
        with self._lock:
            creation = self._underway.get(token)
            return creation is not None and creation.begun

    def stop(self) -> None:
        """Begin nothing more; does not wait for what has begun."""
        with self._lock:
            self._stopped = True
            for creation in self._underway.values():
                creation.withdrawn = True
            for _ in self._threads:
                self._queue.put(None)

    def _start_thread(self) -> None:
        name = f"pod-creation-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (creation := self._queue.get()) is not None:
            if not self._begin(creation):
                continue
            try:
                outcome = creation.create()
            except Exception as exc:
                log.exception("Creating the pod of launch %s failed", creation.token)
                outcome = Postponed(f"creating the pod failed: {type(exc).__name__}", ambiguous=True)
            self._end(creation, outcome)

    def _begin(self, creation: _Creation) -> bool:
        """Whether a creation is to begin now; its check must be fresh, and the API server willing."""
        with self._lock:
            if creation.withdrawn:
                return False
            rest = self._pause()
            if rest is None and self._clock() - creation.handed_over > BEGIN_SECONDS:
                rest = Postponed("its turn did not come soon enough after its check", tried=False)
            if rest is None:
                creation.begun = True
                return True
            del self._underway[creation.token]
            self._outcomes[creation.token] = rest
            return False

    def _end(self, creation: _Creation, outcome: Outcome) -> None:
        with self._lock:
            del self._underway[creation.token]
            if not creation.withdrawn:
                self._outcomes[creation.token] = outcome
            # After the stop there is nobody left to do it: the next scheduler's housekeeping will.
            following = [] if self._stopped else creation.then
        for then in following:
            try:
                then()
            except Exception:
                # The thread goes on: there are not many, and what was to be done is tried again.
                log.exception("What follows the creation of the pod of launch %s failed", creation.token)

    def _pause(self) -> Postponed | None:
        left = self._paused_until - self._clock()
        return Postponed("the API server asked for a pause", left, tried=False) if left > 0 else None
