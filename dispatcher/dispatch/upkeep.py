# SPDX-License-Identifier: Apache-2.0
"""What an executor looks after now and then, beside the launches that each heartbeat is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from dispatcher.backends.base import Backend
from dispatcher.dispatch.abandonment import AbandonmentCheck
from dispatcher.dispatch.flights import FlightTable
from dispatcher.dispatch.forgotten import ForgottenCallbacks
from dispatcher.dispatch.heartbeat import Heartbeat
from dispatcher.dispatch.housekeeping import Housekeeper
from dispatcher.dispatch.pruning import Pruner
from dispatcher.dispatch.search import Searcher
from dispatcher.domain.lifecycle import BackendName
from dispatcher.ledger.subjects import OwnExecutors


class Upkeep:
    """Looks for what lies about, for what is lost, for what nobody finishes, and for what is old.

    :param owner: job id of this scheduler
    :param team: the team of this executor
    :param own: the names of this executor
    :param backends: by name
    :param callback_patience: seconds that a callback may wait for a worker that claims it
    :param retention: how long launches are kept after their end
    :param session: makes a session of our own (rule 16)
    :param clock: monotonic seconds
    :param utcnow: the present
    """

    def __init__(  # noqa: PLR0913
        self,
        *,
        owner: str,
        team: str | None,
        own: OwnExecutors | None,
        backends: Mapping[BackendName, Backend],
        callback_patience: float,
        retention: timedelta,
        session: Callable[[], Any],
        clock: Callable[[], float],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._housekeeper = Housekeeper(
            owner=owner, team=team, backends=backends, session=session, clock=clock
        )
        self._searcher = Searcher(backends=backends, session=session, utcnow=utcnow)
        self._abandonment = AbandonmentCheck(owner=owner, backends=backends, session=session, utcnow=utcnow)
        self._forgotten = ForgottenCallbacks(
            owner=owner,
            team=team,
            own=own,
            patience=callback_patience,
            session=session,
            clock=clock,
            utcnow=utcnow,
        )
        self._pruner = Pruner(owner=owner, retention=retention, session=session, clock=clock, utcnow=utcnow)

    def soon(self) -> None:
        """Let the next heartbeat look at what dead schedulers left."""
        self._housekeeper.soon()

    def keep(self, table: FlightTable, step: Heartbeat, *, sweeps: bool) -> None:
        """Do what is due.

        :param table: the flights in memory
        :param step: takes what Airflow's slots and event logs have to know
        :param sweeps: it is time for what is done as often as a sweep begins
        """
        self._housekeeper.keep()
        self._forgotten.look()
        self._pruner.prune()
        if sweeps:
            self._searcher.search(table, step)
            self._abandonment.look(table)
