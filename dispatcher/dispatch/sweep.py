# SPDX-License-Identifier: Apache-2.0
"""The sweep: every few seconds, memory is compared with the ledger and with Airflow's rows.

It finds what no backend tells: launches that another scheduler took over, launches that lost their subject,
tasks that left RUNNING while the result of their artefact is gone, callbacks that waited too long for a
worker, and launches of ours that memory does not know because they were taken over. One read for each kind
of row, whatever the number of launches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection

from dispatcher.dispatch.flights import Flight, FlightTable
from dispatcher.dispatch.observe import event_after_leaving, left_running
from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState
from dispatcher.domain.protocol import SubmitVerdict, has_expired, judge_submit
from dispatcher.ledger import store, subjects
from dispatcher.ledger.models import LaunchRow

log = logging.getLogger(__name__)

GRACE = 30.0
"""Seconds that the artefact of a task which left RUNNING has to tell its own end."""


SWEEP_INTERVAL = 5.0
"""Seconds between two sweeps, each of which also looks for what dead schedulers left."""

LONGEST_INTERVAL = 10.0
"""Seconds between two sweeps that take long."""

SHARE = 0.01
"""Part of the scheduler's time that sweeps may take, as long as the longest interval allows it."""


class Pace:
    """When to sweep: every few seconds, and less often where so much runs that a sweep takes long.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = 0.0
        self._began = 0.0

    def begins(self) -> bool:
        """Whether it is time; if so, a sweep begins now."""
        self._began = self._clock()
        return self._began >= self._next

    def ended(self) -> None:
        """Take note that the sweep has ended, and that what it found was taken in."""
        now = self._clock()
        self._next = now + min(LONGEST_INTERVAL, max(SWEEP_INTERVAL, (now - self._began) / SHARE))

    def soon(self) -> None:
        """Let the next look find that it is time."""
        self._next = 0.0


@dataclass(slots=True)
class Swept:
    """What a sweep found.

    :param forget: tokens in memory that are not ours any more
    :param unknown: open launches of ours that memory does not hold
    """

    forget: set[str] = field(default_factory=set)
    unknown: list[Launch] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """Compares memory with the database.

    :param owner: job id of this scheduler
    :param team: the team of this executor
    :param clock: monotonic seconds, for the grace of tasks that left RUNNING
    :param callback_patience: how long a callback may wait for a worker that claims it
    :param why_waiting: why the artefact of a launch has not started, as far as it is known
    """

    owner: str
    team: str | None
    clock: Callable[[], float]
    callback_patience: timedelta
    why_waiting: Callable[[Launch], str | None]

    def sweep(self, connection: Connection, table: FlightTable, now: datetime) -> Swept:
        """Run one sweep; ends that it writes show up among the unsettled launches.

        :param connection: a transaction of our own
        :param table: the flights in memory
        :param now: the present
        """
        mine = store.open_states_of_owner(connection, self.owner, self.team)
        live = subjects.live_tokens(connection)
        doubtful = [flight for flight in table if _is_doubtful(flight, mine, live)]
        launches = store.by_tokens(connection, [flight.token for flight in doubtful])
        found = subjects.subjects_of(connection, list(launches.values()))
        callbacks = [one.subject_id for one in launches.values() if one.kind is LaunchKind.CALLBACK]
        claimed = store.callback_claimed_elsewhere(connection, callbacks)
        swept = Swept()
        for flight in doubtful:
            launch = launches.get(flight.token)
            if launch is None or launch.scheduler_job_id != self.owner:
                swept.forget.add(flight.token)
                continue
            flight.launch = launch
            elsewhere = bool(claimed.get(launch.subject_id, set()) - {launch.token})
            self._look_at(connection, flight, found.get(flight.token), now, claimed_elsewhere=elsewhere)
        unknown = store.by_tokens(connection, mine.keys() - table.tokens())
        swept.unknown = sorted(
            (one for one in unknown.values() if one.open and one.scheduler_job_id == self.owner),
            key=lambda launch: launch.sequence,
        )
        return swept

    def drop_unsendable(
        self, connection: Connection, swept: Swept, workloads: Collection[str], now: datetime
    ) -> None:
        """Drop launches that were never sent and never can be: their rows in Airflow make no workload.

        Kept open, each would hold a slot for ever.

        :param connection: a transaction of our own
        :param swept: what the sweep found; what is dropped leaves its unknown launches
        :param workloads: tokens of the launches whose workload could be made
        :param now: the present
        """
        hopeless = [
            launch
            for launch in swept.unknown
            if launch.state is LaunchState.ISSUED and launch.token not in workloads
        ]
        for launch in hopeless:
            log.warning("Launch %s is dropped: Airflow's rows make no workload for it", launch.token)
            self._write(connection, launch, LaunchEvent.DROP, "its workload could not be made again", now)
            swept.unknown.remove(launch)

    def _look_at(
        self,
        connection: Connection,
        flight: Flight,
        subject: Subject | None,
        now: datetime,
        *,
        claimed_elsewhere: bool,
    ) -> None:
        launch = flight.launch
        if launch.kind is LaunchKind.CALLBACK and launch.open and subject is None:
            self._give_up_deleted(connection, launch, now)
        elif has_expired(launch, now, self.callback_patience):
            self._expire(connection, launch, now)
        elif launch.unclaimed:
            verdict = judge_submit(launch, subject, self.owner, claimed_elsewhere=claimed_elsewhere)
            if verdict is SubmitVerdict.DROP:
                self._write(
                    connection, launch, LaunchEvent.DROP, "no longer wanted before it was claimed", now
                )
        elif launch.state is LaunchState.CLAIMED and launch.kind is LaunchKind.TASK:
            self._look_at_claimed(connection, flight, subject, now)

    def _give_up_deleted(self, connection: Connection, launch: Launch, now: datetime) -> None:
        log.warning(
            "Callback %s was deleted, by itself or with its DAG run; its launch %s (%s) is stopped",
            launch.subject_id,
            launch.token,
            launch.state.value,
        )
        event = LaunchEvent.DROP if launch.unclaimed else LaunchEvent.OPERATOR_REVOKE
        self._write(connection, launch, event, "its callback was deleted", now)

    def _expire(self, connection: Connection, launch: Launch, now: datetime) -> None:
        why = self.why_waiting(launch)
        reason = f"no worker started it within {self.callback_patience.total_seconds():g} s"
        reason = f"{reason}: {why}" if why else reason
        log.warning("Launch %s of callback %s is given up: %s", launch.token, launch.subject_id, reason)
        self._write(connection, launch, LaunchEvent.EXPIRE, reason, now)

    def _look_at_claimed(
        self, connection: Connection, flight: Flight, subject: Subject | None, now: datetime
    ) -> None:
        if not left_running(flight.launch, subject):
            flight.left_at = None
            return
        if flight.left_at is None:
            flight.left_at = self.clock()
        if self.clock() - flight.left_at < GRACE:
            return
        event, reason = event_after_leaving(flight.launch, subject)
        self._write(connection, flight.launch, event, reason, now)

    def _write(
        self, connection: Connection, launch: Launch, event: LaunchEvent, reason: str, now: datetime
    ) -> None:
        store.record(
            connection,
            event,
            (launch.token,),
            now=now,
            kind=launch.kind,
            owner=self.owner,
            reason=reason,
            where=(LaunchRow.state == launch.state.value,),
        )


def _is_doubtful(flight: Flight, mine: Mapping[str, LaunchState], live: Mapping[str, str]) -> bool:
    """Whether more must be read of a flight than the states of its launch and its task.

    :param mine: the open launches of this executor
    :param live: the tokens of tasks that are queued or run
    """
    launch = flight.launch
    token, state = launch.token, launch.state
    if mine.get(token) is not state or flight.left_at is not None or not launch.sequence:
        return True
    if launch.kind is LaunchKind.CALLBACK:
        return True
    task = live.get(token)
    return task not in subjects.RUNNING if state is LaunchState.CLAIMED else task != "queued"
