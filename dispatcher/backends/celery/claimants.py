# SPDX-License-Identifier: Apache-2.0
"""Looking, now and then, whether workers still run the callbacks that they claimed.

A callback has no heartbeat. If its worker goes away as a whole, nothing is stored and nobody tells; the
message that comes back later is refused. What shows it are the workers themselves: one after the other look,
for as long as a task may be silent, none of them runs it.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from dispatcher.backends.celery.app import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from concurrent.futures import Future

    from dispatcher.backends.celery.lane import Lane

log = logging.getLogger(__name__)

LOOK_INTERVAL = 30.0
"""Seconds between two looks."""

LEAST_LOOKS = 2
"""Looks that must agree, however short the patience."""


class Claimants:
    """Counts in how many looks nobody ran a launch.

    A look that tells too little (no worker answers, or not all of them) counts for nothing; one in which a
    worker has the launch begins the count anew.

    :param lane: where it looks
    :param ask: asks the workers once, see ``evidence.held_by_workers``
    :param patience: seconds for which nobody must have been seen to run a launch
    """

    def __init__(
        self, lane: Lane, ask: Callable[[Collection[str]], frozenset[str] | None], patience: float
    ) -> None:
        self._lane = lane
        self._ask = ask
        self._needed = max(LEAST_LOOKS, math.ceil(patience / LOOK_INTERVAL))
        self._patience = patience
        self._asked: frozenset[str] = frozenset()
        self._looking: Future[frozenset[str] | None] | None = None
        self._next = 0.0
        self._missed: dict[str, int] = {}

    def abandoned(self, claimed: Collection[str]) -> Mapping[str, str]:
        """Return what nobody runs any more, and begin to look if it is time; waits for nothing.

        :param claimed: tokens of launches that were claimed and have told no result
        """
        self._take_up()
        self._missed = {token: looks for token, looks in self._missed.items() if token in claimed}
        if claimed and self._looking is None and time.monotonic() >= self._next:
            asked = self._asked = frozenset(claimed)
            self._looking = self._lane.start(lambda: self._ask(asked))
            if self._looking is not None:
                self._next = time.monotonic() + LOOK_INTERVAL
        why = f"no Celery worker has run it for {self._patience:g} s"
        return {token: why for token, looks in self._missed.items() if looks >= self._needed}

    def _take_up(self) -> None:
        self._lane.expire()
        if self._looking is None or not self._looking.done():
            return
        looked, self._looking = self._looking, None
        if (error := looked.exception()) is not None:
            log.debug("Nothing is known of who runs callbacks: %s", describe(error))
            return
        held = looked.result()
        if held is None:
            return
        for token in self._asked:
            self._missed[token] = 0 if token in held else self._missed.get(token, 0) + 1
