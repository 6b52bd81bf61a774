# SPDX-License-Identifier: Apache-2.0
"""Pruning: launches that ended long ago leave the ledger, a bounded number in each heartbeat (rule 20)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dispatcher.domain.launch import Launch
from dispatcher.ledger import leftovers, pruning
from dispatcher.ledger.errors import DATABASE_ERRORS

log = logging.getLogger(__name__)

PRUNING_INTERVAL = 3600.0
"""Seconds between two times at which old launches are looked for."""

BATCH = 1000
"""Launches that one heartbeat looks at; while there are more, the next one goes on."""


@dataclass(kw_only=True)
class Pruner:
    """Removes old launches; of several schedulers, the one that has run longest does.

    Two that take each other for dead do no harm: what one has removed, the other does not find.

    :param owner: job id of this scheduler
    :param retention: how long launches are kept after their end
    :param session: makes a session of our own (rule 16)
    :param clock: monotonic seconds
    :param utcnow: the present
    """

    owner: str
    retention: timedelta
    session: Callable[[], Any]
    clock: Callable[[], float]
    utcnow: Callable[[], datetime]
    _next: float = 0.0
    _after: Launch | None = None
    _removed: int = 0

    def prune(self) -> None:
        """Remove a batch, if it is time; a database error leaves it for the next time."""
        if self.clock() < self._next:
            return
        self._next = self.clock() + PRUNING_INTERVAL
        try:
            with self.session() as session:
                batch, removed = self._prune(session.connection())
        except DATABASE_ERRORS as exc:
            log.warning("No old launches are removed: the database failed (%s)", type(exc).__name__)
            return
        self._removed += removed
        if len(batch) == BATCH:
            self._after, self._next = batch[-1], 0.0
            return
        if self._removed:
            log.info("Removed %d launches that ended over %d days ago", self._removed, self.retention.days)
        self._after, self._removed = None, 0

    def _prune(self, connection: Any) -> tuple[list[Launch], int]:
        if next(iter(leftovers.schedulers_alive(connection)), None) != self.owner:
            return [], 0
        before = self.utcnow() - self.retention
        batch = pruning.old_launches(connection, before=before, after=self._after, limit=BATCH)
        return batch, pruning.remove(connection, batch, before=before)
