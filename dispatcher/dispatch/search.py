# SPDX-License-Identifier: Apache-2.0
"""Searching for launches that were sent long ago and that nobody has claimed (rule 6).

The backend tells, by positive evidence, that nothing is left of what was sent: a broker was flushed, or a
worker died with what it had taken and not begun. Such a launch is sent again under the same token, a few
times at most.
It passes the check of every send, and should the old message turn up after all, only one of them can claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from dispatcher.backends.base import Backend
from dispatcher.dispatch.flights import Flight, FlightTable
from dispatcher.dispatch.heartbeat import Heartbeat
from dispatcher.dispatch.tour import PAGE
from dispatcher.domain.lifecycle import BackendName, LaunchState
from dispatcher.ledger import store
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.recovery import rebuild_workloads

log = logging.getLogger(__name__)

PATIENCE = timedelta(seconds=30)
"""How long a launch may wait for its claim before it is looked for."""

RESENDS = 3
"""How often one launch is sent again: a queue that loses everything must not be filled for ever."""


@dataclass(kw_only=True)
class Searcher:
    """Has the backends look for what waits, and sends again what is lost.

    :param backends: by name
    :param session: makes a session of our own (rule 16)
    :param utcnow: the present
    """

    backends: Mapping[BackendName, Backend]
    session: Callable[[], Any]
    utcnow: Callable[[], datetime]
    _resends: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def search(self, table: FlightTable, step: Heartbeat) -> None:
        """Look once at everything that waits; what is sent again is queued in ``step``.

        A database error leaves what was found to the next time that it is found.

        :param table: the flights in memory; what it has not heard of yet is read before anything is done
        :param step: takes what Airflow's slots and event logs have to know
        """
        known = table.tokens()
        self._resends = {token: count for token, count in self._resends.items() if token in known}
        self._told.intersection_update(known)
        since = self.utcnow() - PATIENCE
        by_backend: dict[BackendName, list[Flight]] = {name: [] for name in self.backends}
        for flight in table:
            if _is_waiting(flight, since):
                by_backend[flight.launch.backend].append(flight)
        for name, waiting in by_backend.items():
            found = self.backends[name].look_for({flight.token: flight.launch.queue for flight in waiting})
            self._tell(waiting, found.stranded, step)
            lost = [one for one in waiting if one.token in found.lost and table.is_current(one)]
            self._send_again([one for one in lost if self._may_be_sent_again(one)], step)

    def _tell(self, waiting: Collection[Flight], stranded: Mapping[str, str], step: Heartbeat) -> None:
        self._told.difference_update(flight.token for flight in waiting if flight.token not in stranded)
        news = (one for one in waiting if one.token in stranded and one.token not in self._told)
        for flight in self._unclaimed(list(islice(news, PAGE))):
            self._told.add(flight.token)
            step.note(flight.key, "launch waits", stranded[flight.token])

    def _unclaimed(self, flights: Collection[Flight]) -> list[Flight]:
        """Return those that no worker has claimed; memory may hear of a claim later than anybody else."""
        if not flights:
            return []
        try:
            with self.session() as session:
                launches = store.by_tokens(session.connection(), [flight.token for flight in flights])
        except DATABASE_ERRORS as exc:
            log.warning("Nobody is told of what waits now: the database failed (%s)", type(exc).__name__)
            return []
        return [one for one in flights if (launch := launches.get(one.token)) and launch.unclaimed]

    def _may_be_sent_again(self, flight: Flight) -> bool:
        if self._resends.get(flight.token, 0) < RESENDS:
            return True
        if self._resends[flight.token] == RESENDS:
            log.warning(
                "Launch %s was lost again after it was sent %d times; it is left to Airflow's time-out",
                flight.token,
                RESENDS + 1,
            )
            self._resends[flight.token] += 1  # told once
        return False

    def _send_again(self, flights: Collection[Flight], step: Heartbeat) -> None:
        if not flights:
            return
        try:
            with self.session() as session:
                launches = store.by_tokens(session.connection(), [flight.token for flight in flights])
                workloads = rebuild_workloads(session, [one for one in launches.values() if one.unclaimed])
        except DATABASE_ERRORS as exc:
            log.warning("Nothing is sent again now: the database failed (%s)", type(exc).__name__)
            return
        for flight in flights:
            workload = workloads.get(flight.token)
            if workload is None:
                continue  # claimed meanwhile, or no longer wanted: the sweep sees to it
            log.warning(
                "Launch %s was sent, and neither its queue %r nor any worker holds it: it is sent again",
                flight.token,
                flight.launch.queue,
            )
            step.note(flight.key, "launch sent again", "it was in its queue no more, and no worker had it")
            self._resends[flight.token] = self._resends.get(flight.token, 0) + 1
            flight.workload = workload
            step.freed.add(flight.key)
            step.queued[flight.key] = workload


def _is_waiting(flight: Flight, since: datetime) -> bool:
    launch = flight.launch
    sent = launch.state is LaunchState.SUBMITTED and flight.workload is None
    return sent and launch.submitted_at is not None and launch.submitted_at < since
