# SPDX-License-Identifier: Apache-2.0
"""Housekeeping: now and then, what backends show that nobody waits for is compared with the ledger.

It finds what no ordinary step takes away: pods of launches whose scheduler died between the settled end and
the removal, second pods of one launch, pods of connection tests, pods of launches that were pruned. The
backends name them from what they have seen; the ledger says whether they are of use to anybody.

What belongs to a scheduler that runs is left to it. Of what a dead one left, one scheduler alone takes each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from dispatcher.backends.base import Artefact, Backend, Progress, Stray
from dispatcher.dispatch.reports import may_still_run
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.workload import WorkloadKind
from dispatcher.ledger import leftovers, store
from dispatcher.ledger.errors import DATABASE_ERRORS

log = logging.getLogger(__name__)

HOUSEKEEPING_INTERVAL = 30.0
"""Seconds between two looks."""

TEST_PATIENCE = 3600.0
"""Seconds that a connection test without a living scheduler may go on; Airflow gave it up long before."""


@dataclass(slots=True)
class Leftovers:
    """What is to be taken away in one backend.

    :param stop: has not ended, and may not go on
    :param remove: has ended
    """

    stop: list[Artefact] = field(default_factory=list)
    remove: list[Artefact] = field(default_factory=list)


class Housekeeper:
    """Takes away what nobody waits for, for one executor.

    :param owner: job id of this scheduler
    :param team: the team of this executor
    :param backends: by name
    :param session: makes a session of our own
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        *,
        owner: str,
        team: str | None,
        backends: Mapping[BackendName, Backend],
        session: Callable[[], Any],
        clock: Callable[[], float],
    ) -> None:
        self._owner = owner
        self._team = team
        self._backends = backends
        self._session = session
        self._clock = clock
        self._next = 0.0
        self._used: set[BackendName] = set()
        self._newest = 0
        self._tests_seen: dict[str, float] = {}

    def soon(self) -> None:
        """Let the next heartbeat look."""
        self._next = 0.0

    def keep(self) -> None:
        """Look, if it is time; a database error leaves it for the next time."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + HOUSEKEEPING_INTERVAL
        try:
            with self._session() as session:
                found = self._look(session.connection())
        except DATABASE_ERRORS as exc:
            log.warning("Nothing is tidied up this time: the database failed (%s)", type(exc).__name__)
            return
        # After the commit: from here on they are ours to take away.
        for name, leftover in found.items():
            self._clear(name, leftover)

    def _look(self, connection: Connection) -> dict[BackendName, Leftovers]:
        used, self._newest = leftovers.backends_used(connection, after=self._newest)
        self._used |= used
        # Read before the ledger is: what is settled now was not sent after this look.
        strays = {name: list(self._backends[name].strays()) for name in self._used & self._backends.keys()}
        if not any(strays.values()):
            return {}
        alive = leftovers.schedulers_alive(connection)
        if self._owner not in alive:
            return {}
        tokens = {one.artefact.token for some in strays.values() for one in some}
        launches = store.by_tokens(connection, tokens)
        useless = {
            stray.artefact.token
            for name, some in strays.items()
            for stray in some
            if (launch := launches.get(stray.artefact.token)) is not None
            and launch.backend is name
            and launch.team_name == self._team
            and is_useless(launch, stray)
        }
        mine = {token for token in useless if launches[token].scheduler_job_id == self._owner}
        heirless = {token for token in useless if launches[token].scheduler_job_id not in alive}
        mine |= leftovers.inherit_settled(connection, heirless, owner=self._owner, alive=alive)
        return {name: self._sort(some, launches, mine, alive) for name, some in strays.items()}

    def _sort(
        self,
        strays: Collection[Stray],
        launches: Mapping[str, Launch],
        mine: Collection[str],
        alive: list[str],
    ) -> Leftovers:
        found = Leftovers()
        for stray in strays:
            token = stray.artefact.token
            if token in mine or (token not in launches and self._is_left_by_nobody(stray, alive)):
                kind = found.remove if stray.progress is Progress.ENDED else found.stop
                kind.append(stray.artefact)
        return found

    def _is_left_by_nobody(self, stray: Stray, alive: list[str]) -> bool:
        """Whether an artefact without a launch is ours to take away: it was pruned, or tests a connection."""
        heir = stray.sender if stray.sender in alive else alive[0]
        if heir != self._owner:
            return False
        if stray.progress is Progress.ENDED:
            return True
        if stray.artefact.kind is not WorkloadKind.TEST_CONNECTION:
            return False
        first_seen = self._tests_seen.setdefault(stray.artefact.token, self._clock())
        return self._clock() - first_seen > TEST_PATIENCE

    def _clear(self, name: BackendName, found: Leftovers) -> None:
        for artefact in (*found.stop, *found.remove):
            self._tests_seen.pop(artefact.token, None)
            log.info("Nobody waits for %s of %s any more", artefact.external_id, artefact.token)
        if found.stop:
            self._backends[name].revoke(found.stop)
        if found.remove:
            self._backends[name].remove(found.remove)


def is_useless(launch: Launch, stray: Stray) -> bool:
    """Whether an artefact of a launch may be taken away: all is settled, and it does no work that counts.

    One that has not started can never claim, since its launch has ended. One that runs is stopped only if
    its launch was told to stop or gave way to another; else it may be about to end by itself.

    :param launch: its ledger row
    :param stray: the artefact
    """
    if launch.settled_at is None:
        return False
    return stray.progress is not Progress.RUNNING or may_still_run(launch)
