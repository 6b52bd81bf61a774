# SPDX-License-Identifier: Apache-2.0
"""Relaunching: what was lost before it was claimed is launched again, a bounded number of times (rule 6).

Each in a transaction of its own, which locks the subject before it touches the ledger. How often a subject
was launched again is read from the ledger, so that a new scheduler goes on counting.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from dispatcher.dispatch.observe import End, Ended, Observer, Unstarted, event_for
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.domain.protocol import Ending, ReportVerdict
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.ledger.relaunching import NotRelaunched, Relaunch, relaunch
from dispatcher.recovery import rebuild_workloads

log = logging.getLogger(__name__)

AT_A_TIME = 50
"""Relaunches in one heartbeat; the rest is observed again in the next one."""

FIRST_PAUSE = 10.0
"""Seconds before the second relaunch in a row is sent; doubled for each further one. The first is at once."""


@dataclass(frozen=True, slots=True)
class Relaunched:
    """A launch that took the place of another.

    :param old: what it replaced
    :param new: its ledger row
    :param workload: what is to be sent; None if Airflow's rows make none
    :param pause: seconds to wait before it is sent
    :param why: for people
    """

    old: Launch
    new: Launch
    workload: Any
    pause: float
    why: str


@dataclass(slots=True)
class Restarted:
    """What became of launches that had not started.

    :param relaunched: replaced by a new one
    :param ended: launched often enough, or not needed; their end was written
    """

    relaunched: list[Relaunched] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relauncher:
    """Launches again what did not start.

    :param owner: job id of this scheduler
    :param observer: writes the end of what is not launched again
    :param limits: how many relaunches in a row there may be, by kind
    :param session: makes a session of our own (rule 16)
    :param utcnow: the present
    """

    owner: str
    observer: Observer
    limits: Mapping[LaunchKind, int]
    session: Callable[[], Any]
    utcnow: Callable[[], datetime]

    def restart(self, unstarted: Sequence[Unstarted]) -> Restarted:
        """Replace launches, or end those that were launched often enough, or that another one makes needless.

        What moved on meanwhile is left alone; a database error leaves the rest for the next heartbeat.

        :param unstarted: what was observed
        """
        restarted = Restarted()
        for one in unstarted[:AT_A_TIME]:
            try:
                with self.session() as session:
                    outcome = self._restart_one(session, one)
            except DATABASE_ERRORS as exc:
                log.warning(
                    "Nothing more is launched again now: the database failed (%s)", type(exc).__name__
                )
                break
            if isinstance(outcome, Relaunched):
                restarted.relaunched.append(outcome)
            elif outcome is not None:
                restarted.ended.append(outcome)
        return restarted

    def _restart_one(self, session: Session, one: Unstarted) -> Relaunched | Ended | None:
        now = self.utcnow()
        limit = self.limits[one.launch.kind]
        why = one.ending.reason or "its artefact was lost"
        order = Relaunch(token=str(uuid.uuid4()), owner=self.owner, limit=limit, reason=why, now=now)
        outcome = relaunch(session.connection(), one.launch, one.subject.id, order)
        if outcome is NotRelaunched.MOVED_ON:
            return None
        if isinstance(outcome, NotRelaunched):
            spent = limit and outcome is NotRelaunched.SPENT
            reason = f"{why}; {limit + 1} launches in a row did not start" if spent else why
            return self._end(session, one, reason, now)
        new, number = outcome
        workload = rebuild_workloads(session, [new]).get(new.token)
        log.warning(
            "Launch %s did not start and is launched again as %s (%d of %d): %s",
            one.launch.token,
            new.token,
            number,
            limit,
            why,
        )
        return Relaunched(one.launch, new, workload, pause_before(number), f"{why} ({number} of {limit})")

    def _end(self, session: Session, one: Unstarted, reason: str, now: datetime) -> Ended | None:
        ending = Ending(ok=False, proven=one.ending.proven, reason=reason)
        event = event_for(one.launch, one.subject, ending, one.observation, ReportVerdict.EMIT)
        ends = [End(one.launch, event, ending, told=True)]
        return next(iter(self.observer.write_ends(session.connection(), ends, now)), None)


def pause_before(number: int) -> float:
    """Return seconds to wait before a relaunch is sent: what failed twice needs time to recover.

    :param number: which relaunch in a row it is
    """
    return 0.0 if number < 2 else FIRST_PAUSE * 2.0 ** (number - 2)  # noqa: PLR2004
