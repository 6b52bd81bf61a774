# SPDX-License-Identifier: Apache-2.0
"""Work that may wait while a service is away, and what is said about the service being away."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from dispatcher.backends.celery.app import describe
from dispatcher.backends.celery.lane import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from dispatcher.backends.celery.lane import Lane

log = logging.getLogger(__name__)


class Outage:
    """Tells the log once that a service is away, and once that it is back.

    :param what: the service, as it begins a sentence
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._reason: str | None = None

    @property
    def current(self) -> bool:
        """Whether the service was away when it was last needed."""
        return self._reason is not None

    @property
    def text(self) -> str | None:
        """What is away and why, in one line; None when the service did what it was last asked for."""
        return None if self._reason is None else f"{self._what} is away: {self._reason}"

    def begin(self, reason: str) -> None:
        """Note that the service is away.

        :param reason: one line for people, without credentials
        """
        if not self.current:
            log.warning("%s is away: %s", self._what, reason)
        self._reason = reason

    def end(self) -> None:
        """Note that the service did what it was asked for."""
        if self.current:
            log.info("%s is back.", self._what)
        self._reason = None


class Chore:
    """Something to be done with tokens, all at once, again and again until it worked.

    :param lane: where it is done
    :param work: does it; raises when it did not work
    :param outage: the service that it needs
    """

    def __init__(self, lane: Lane, work: Callable[[list[str]], None], outage: Outage) -> None:
        self._lane = lane
        self._work = work
        self._outage = outage
        self._patience = Patience()
        self._waiting: set[str] = set()
        self._tokens: list[str] = []
        self._running: Future[None] | None = None

    def add(self, tokens: Iterable[str]) -> None:
        """Put off ``tokens`` until ``push``."""
        self._waiting.update(tokens)

    def push(self, patience: float) -> None:
        """Begin what waits, unless the lane is busy, and wait for it.

        :param patience: seconds to wait at most; none while the service is away or slow
        """
        if self._running is None and self._waiting:
            self._tokens = list(self._waiting)
            self._running = self._lane.start(partial(self._work, self._tokens))
        if self._running is None:
            return
        if not self._patience.wait(self._running, 0 if self._outage.current else patience):
            return
        error = self._running.exception()
        self._running = None
        if error is None:
            self._waiting.difference_update(self._tokens)
            self._outage.end()
        else:
            self._outage.begin(describe(error))
