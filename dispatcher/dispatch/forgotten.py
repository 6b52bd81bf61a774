# SPDX-License-Identifier: Apache-2.0
"""Callbacks that no launch will ever finish: people are told of them, and they do not wait for ever.

Airflow looks at callbacks in PENDING alone. One that an executor without a ledger had queued when it was
replaced stays in QUEUED or RUNNING, and one that names an executor which does not exist stays in PENDING.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from airflow.executors.executor_loader import ExecutorLoader
from airflow.models.log import Log
from sqlalchemy.orm import Session

from dispatcher.ledger import callbacks, leftovers
from dispatcher.ledger.callbacks import WaitingCallback
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.ledger.subjects import OwnExecutors

log = logging.getLogger(__name__)

INTERVAL = 300.0
"""Seconds between two looks."""

PENDING_FOR = timedelta(seconds=60)
"""How long a callback is in PENDING before anybody wonders."""

MOST = 1000
"""Callbacks whose data are read in one look. What was read once and is not of interest is not read again."""

EVENT = "callback waits"
"""What Airflow's event log calls a callback that nobody can run."""


@dataclass(slots=True)
class PassedOver:
    """Callbacks that were read and need no further look: what one asks for stays the same.

    Without it, as many of another executor's as are read in a look would hide ours for as long as they stand.
    """

    _ids: set[str] = field(default_factory=set)

    def left_of(self, ids: Sequence[str]) -> list[str]:
        """Return which callbacks are to be read in this look, and forget those that are gone.

        :param ids: all that are there, in the order of their turn
        """
        self._ids.intersection_update(ids)
        return list(islice((one for one in ids if one not in self._ids), MOST))

    def add(self, callback_id: str) -> None:
        """Look at a callback no more.

        :param callback_id: its UUID
        """
        self._ids.add(callback_id)


@dataclass(kw_only=True)
class ForgottenCallbacks:
    """Looks for callbacks that wait in vain; of several schedulers, the one that has run longest does.

    :param owner: job id of this scheduler
    :param team: the team of this executor
    :param own: the names of this executor
    :param patience: seconds for which a callback must have stood still, before its outcome counts as unknown:
        a scheduler with the executor that it came from may still be alive
    :param session: makes a session of our own (rule 16)
    :param clock: monotonic seconds
    :param utcnow: the present
    """

    owner: str
    team: str | None
    own: OwnExecutors | None
    patience: float
    session: Callable[[], Any]
    clock: Callable[[], float]
    utcnow: Callable[[], datetime]
    _next: float = 0.0
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    _of_others: PassedOver = field(default_factory=PassedOver)
    _looked_at: PassedOver = field(default_factory=PassedOver)

    def look(self) -> None:
        """Look, if it is time; a database error leaves it for the next time."""
        if self.clock() < self._next:
            return
        self._next = self.clock() + INTERVAL
        try:
            with self.session() as session:
                if next(iter(leftovers.schedulers_alive(session.connection())), None) == self.owner:
                    self._fail_unknown(session)
                    self._tell_pending(session)
        except DATABASE_ERRORS as exc:
            log.warning("No forgotten callbacks are looked for: the database failed (%s)", type(exc).__name__)
        except Exception:
            # Their data are anybody's: a row that cannot be read must not end the scheduler.
            log.exception("Forgotten callbacks cannot be looked for")

    def _fail_unknown(self, session: Session) -> None:
        now = self.clock()
        found = self._ours_without_launch(session)
        self._since = {one.standing: self._since.get(one.standing, now) for one in found}
        for one in found:
            if now - self._since[one.standing] < self.patience:
                continue
            reason = (
                f"outcome unknown: it was {one.state} when the executor that had it went away, and no launch "
                "of it is recorded; it may or may not have run"
            )
            if callbacks.fail(session, one, reason):
                log.warning("Callback %s (%s) is failed: %s", one.id, one.path, reason)

    def _ours_without_launch(self, session: Session) -> list[WaitingCallback]:
        ids = self._of_others.left_of(callbacks.ids_without_launch(session))
        read = callbacks.read(session, ids)
        named = [one for one in read if self.own is None or one.executor in self.own]
        ours = callbacks.of_team(session, named, self.team)
        # Also those that cannot be read: they are told once.
        for one in set(ids) - {one.id for one in ours}:
            self._of_others.add(one)
        return ours

    def _tell_pending(self, session: Session) -> None:
        names = known_names()
        ids = self._looked_at.left_of(callbacks.ids_pending(session, since=self.utcnow() - PENDING_FOR))
        for one in callbacks.read(session, ids):
            if one.executor is None or one.executor in names:
                continue
            reason = (
                f"Callback {one.id} ({one.path}) names the executor {one.executor!r}, which is not one of "
                "[core] executor: it stays PENDING until there is one of this name"
            )
            log.warning("%s", reason)
            session.add(Log(event=EVENT, dag_id=one.dag_id, run_id=one.run_id, extra=reason))
        for callback_id in ids:
            self._looked_at.add(callback_id)


def known_names() -> Collection[str]:
    """Return every name by which a callback may ask for an executor of this deployment."""
    names: set[str] = set()
    for name in ExecutorLoader.get_executor_names(validate_teams=False):
        names |= {name.module_path, name.module_path.rpartition(".")[2]}
        if name.alias:
            names.add(name.alias)
    return names
