# SPDX-License-Identifier: Apache-2.0
"""Looking, now and then, for the messages of launches that have waited for long, and for idle queues.

Messages move while one looks, and workers may be too busy to answer; so only what two looks in a row agree on
counts. A wrong conclusion would cost a needless message and nothing else: one claim wins.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from dispatcher.backends.base import Findings
from dispatcher.backends.celery.app import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from dispatcher.backends.celery.evidence import Evidence
    from dispatcher.backends.celery.lane import Lane

log = logging.getLogger(__name__)

LOOK_INTERVAL = 30.0
"""Seconds between two looks."""

CONFIRM_INTERVAL = 10.0
"""Seconds after which a look that found something is confirmed by another."""

LOOKS_TO_BELIEVE = 2
"""Looks in a row that must agree that a queue is not consumed while other workers answer."""

LOOKS_IN_SILENCE = 4
"""The same while no worker answers at all: all may be restarting."""

REPEAT_SECONDS = 600.0
"""After how long the log is told again of a queue that nobody consumes."""


class Lookout:
    """Looks in a lane of its own, so that no send waits for it.

    :param lane: where it looks
    :param gather: looks once, see ``evidence.gather``
    :param suffix: of the executor in log lines, " of team x" or nothing
    """

    def __init__(
        self, lane: Lane, gather: Callable[[Mapping[str, str]], Evidence | None], suffix: str
    ) -> None:
        self._lane = lane
        self._gather = gather
        self._suffix = suffix
        self._looking: Future[Evidence | None] | None = None
        self._next = 0.0
        self._absent: frozenset[str] = frozenset()
        self._queues: dict[str, str] = {}
        self._unserved: dict[str, int] = {}
        self._told: dict[str, float] = {}
        self._silent = False

    def findings(self, waiting: Mapping[str, str]) -> Findings:
        """Return what is certain by now, and begin to look if it is time; waits for nothing.

        A launch is named as lost once. If it is named again, it was looked for anew.

        :param waiting: the queue of each launch that has waited for long, by token
        """
        self._queues = dict(waiting)
        lost = self._take_up()
        if not waiting:
            self._unserved.clear()
            self._told.clear()
        elif self._looking is None and time.monotonic() >= self._next:
            asked = dict(waiting)
            self._looking = self._lane.start(lambda: self._gather(asked))
            if self._looking is not None:  # else the lane is asking who runs callbacks
                self._next = time.monotonic() + LOOK_INTERVAL
        reasons = {token: self.why_waiting(token) for token in waiting}
        return Findings(
            lost=lost & waiting.keys(), stranded={token: why for token, why in reasons.items() if why}
        )

    def why_waiting(self, token: str) -> str | None:
        """Return why a message is not taken, as far as the last looks told.

        :param token: of a launch that was looked for
        """
        queue = self._queues.get(token)
        if queue is None or not self._is_believed(queue):
            return None
        if self._silent:
            return f"no Celery worker answers, and none consumes its queue {queue!r}"
        return f"no Celery worker consumes its queue {queue!r}"

    def _take_up(self) -> frozenset[str]:
        self._lane.expire()
        if self._looking is None or not self._looking.done():
            return frozenset()
        looked, self._looking = self._looking, None
        if (error := looked.exception()) is not None:
            log.debug("Nothing is known of the messages in the broker: %s", describe(error))
            self._absent = frozenset()
            return frozenset()
        evidence = looked.result()
        if evidence is None:
            return frozenset()
        lost = self._absent & evidence.absent
        self._absent = evidence.absent - lost
        self._note_queues(evidence)
        if self._absent or any(not self._is_believed(queue) for queue in self._unserved):
            self._next = time.monotonic() + CONFIRM_INTERVAL
        return lost

    def _note_queues(self, evidence: Evidence) -> None:
        self._silent = not evidence.workers
        for queue in [queue for queue in self._unserved if queue not in evidence.unserved]:
            del self._unserved[queue]
            if self._told.pop(queue, None) is not None and queue in self._queues.values():
                log.info("The Celery queue %r%s is consumed again.", queue, self._suffix)
        for queue in evidence.unserved:
            self._unserved[queue] = self._unserved.get(queue, 0) + 1
            self._warn(queue)

    def _warn(self, queue: str) -> None:
        now = time.monotonic()
        told = self._told.get(queue)
        if not self._is_believed(queue) or (told is not None and now - told < REPEAT_SECONDS):
            return
        self._told[queue] = now
        log.warning(
            "Launches wait in the Celery queue %r%s, and no worker consumes it (%s): start one with -Q %s.",
            queue,
            self._suffix,
            "no worker answers at all" if self._silent else "others answer",
            queue,
        )

    def _is_believed(self, queue: str) -> bool:
        return self._unserved.get(queue, 0) >= (LOOKS_IN_SILENCE if self._silent else LOOKS_TO_BELIEVE)
