# SPDX-License-Identifier: Apache-2.0
"""Settling: what Airflow has heard is marked as dealt with, and only then are artefacts removed (rule 14)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dispatcher.backends.base import Artefact, Backend, Observation
from dispatcher.dispatch.connection_tests import ConnectionTests
from dispatcher.dispatch.flights import artefact_of
from dispatcher.dispatch.reports import ReportTable, is_winding_down, may_still_run
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.workload import WorkloadKind
from dispatcher.ledger import store
from dispatcher.ledger.errors import DATABASE_ERRORS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Settles launches and takes away what they left.

    :param backends: by name
    :param reports: knows what may be settled
    :param connection_tests: knows which tests were given up
    :param owner: job id of this scheduler; what another one took over meanwhile is left to it
    :param session: makes a session of our own (rule 16)
    :param utcnow: the present
    :param patience: seconds that a superseded claimant may take to finish
    """

    backends: Mapping[BackendName, Backend]
    reports: ReportTable
    connection_tests: ConnectionTests
    owner: str
    session: Callable[[], Any]
    utcnow: Callable[[], datetime]
    patience: float

    def settle(
        self,
        stray: Collection[str],
        elsewhere: Collection[str],
        observed: Mapping[BackendName, Sequence[Observation]],
    ) -> None:
        """Settle what Airflow has heard, and remove the artefacts that nobody waits for any more.

        :param stray: tokens of artefacts that ended and that no open launch waits for
        :param elsewhere: tokens of launches that another scheduler took over and has settled: what is left of
            them is its own to remove, and housekeeping's once it is dead
        :param observed: what the backends showed, by backend
        """
        settled = self._settle()
        for name, backend in self.backends.items():
            mine = [launch for launch in settled if launch.backend is name and launch.submitted_at]
            given_up = self.connection_tests.take_given_up(name)
            stop = [artefact_of(launch) for launch in mine if self._has_to_stop(launch)] + given_up
            if stop:
                backend.revoke(stop)
            strays = [Artefact(one.token, WorkloadKind.TASK) for one in observed[name] if one.token in stray]
            remove = [artefact_of(launch) for launch in mine] + strays + given_up
            if remove:
                backend.remove(remove)
            if elsewhere:
                backend.release(elsewhere)

    def _has_to_stop(self, launch: Launch) -> bool:
        """Whether an artefact may still run and has had its time.

        A superseded claimant that is settled earlier than that was seen to end. To revoke its message would
        only have a worker drop a late copy of it in silence, in place of the guard, which says why.
        """
        return may_still_run(launch) and not is_winding_down(launch, self.utcnow(), self.patience)

    def _settle(self) -> list[Launch]:
        settleable = self.reports.settleable()
        if not settleable:
            return []
        try:
            with self.session() as session:
                settled = store.settle(session.connection(), settleable, owner=self.owner, now=self.utcnow())
        except DATABASE_ERRORS as exc:
            log.warning("Nothing is settled in this heartbeat: the database failed (%s)", type(exc).__name__)
            return []
        for token in settleable:
            self.reports.settled(token)
        return [launch for token, launch in settleable.items() if token in settled]
