# SPDX-License-Identifier: Apache-2.0
"""Callbacks whose worker is gone for good: they are lost, and their slots become free.

A task that is run by nobody is found by its heartbeat. A callback has none: what shows it is the backend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dispatcher.backends.base import Backend
from dispatcher.dispatch.flights import FlightTable
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchEvent, LaunchKind, LaunchState
from dispatcher.ledger import store
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.ledger.models import LaunchRow

log = logging.getLogger(__name__)

LEAST_AGE = timedelta(seconds=60)
"""How long ago a callback must have been claimed before anybody asks who runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonmentCheck:
    """Ends the launches of callbacks that nobody runs any more.

    :param owner: job id of this scheduler
    :param backends: by name
    :param session: makes a session of our own (rule 16)
    :param utcnow: the present
    """

    owner: str
    backends: Mapping[BackendName, Backend]
    session: Callable[[], Any]
    utcnow: Callable[[], datetime]

    def look(self, table: FlightTable) -> None:
        """Look once; the next heartbeat finds what was ended, frees its slot and reports it.

        A database error leaves what was found to the next look.

        :param table: the flights in memory; of a claim that it has not heard of yet, a later look takes care
        """
        since = self.utcnow() - LEAST_AGE
        by_backend: dict[BackendName, dict[str, Launch]] = {name: {} for name in self.backends}
        for flight in table:
            if _has_run_for_long(flight.launch, since):
                by_backend[flight.launch.backend][flight.token] = flight.launch
        for name, claimed in by_backend.items():
            found = self.backends[name].abandoned(claimed.keys())
            if found:
                self._lose({token: (claimed[token], why) for token, why in found.items()})

    def _lose(self, lost: Mapping[str, tuple[Launch, str]]) -> None:
        try:
            with self.session() as session:
                for token, (launch, why) in lost.items():
                    store.record(
                        session.connection(),
                        LaunchEvent.LOSE,
                        (token,),
                        now=self.utcnow(),
                        kind=LaunchKind.CALLBACK,
                        owner=self.owner,
                        reason=outcome_unknown(launch, why),
                        where=(LaunchRow.state == LaunchState.CLAIMED.value,),
                    )
        except DATABASE_ERRORS as exc:
            log.warning(
                "Callbacks without a worker are ended later: the database failed (%s)", type(exc).__name__
            )


def _has_run_for_long(launch: Launch, since: datetime) -> bool:
    claimed = launch.kind is LaunchKind.CALLBACK and launch.state is LaunchState.CLAIMED
    return claimed and launch.claimed_at is not None and launch.claimed_at < since


def outcome_unknown(launch: Launch, why: str) -> str:
    """Return all that is known of a claimed callback of which no result will come.

    :param launch: its ledger row
    :param why: what shows that its worker is gone
    """
    when = "" if launch.claimed_at is None else f" at {launch.claimed_at:%Y-%m-%d %H:%M:%S} UTC"
    where = f" on {launch.hostname}" if launch.hostname else ""
    return f"outcome unknown: a worker{where} claimed it{when} and told no result; {why}"
