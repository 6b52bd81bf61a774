# SPDX-License-Identifier: Apache-2.0
"""The sweep: memory is compared with the ledger and with Airflow's rows.

It finds what no backend tells: launches that another scheduler took over, launches that lost their subject,
tasks that left RUNNING while the result of their artefact is gone, callbacks that waited too long for a
worker, and launches of ours that memory does not know because they were taken over.

Where they stand is read on a tour, a page in a heartbeat; only what differs is read in whole, so that a
heartbeat costs what has changed. What is known to need a look gets one in the next heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import Connection

from dispatcher.dispatch import tour
from dispatcher.dispatch.flights import Flight, FlightTable
from dispatcher.dispatch.observe import event_after_leaving, left_running
from dispatcher.dispatch.tour import Page, Tour
from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState
from dispatcher.domain.protocol import SubmitVerdict, has_expired, judge_submit
from dispatcher.ledger import store, subjects
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.standing import Standing

log = logging.getLogger(__name__)

GRACE = 30.0
"""Seconds that the artefact of a task which left RUNNING has to tell its own end."""


@dataclass(slots=True)
class Swept:
    """What a sweep found.

    :param page: the part of the tour that was read, if it was time for one
    :param inherits: it was time to look for what dead schedulers left, and for what else is done as often
    :param looked_at: the tokens that were looked at
    :param forget: tokens in memory that are not ours any more
    :param unknown: open launches of ours that memory does not hold
    """

    page: Page | None = None
    inherits: bool = False
    looked_at: Collection[str] = ()
    forget: set[str] = field(default_factory=set)
    unknown: list[Launch] = field(default_factory=list)


class Sweeper:
    """Compares memory with the database.

    :param owner: job id of this scheduler
    :param team: the team of this executor
    :param clock: monotonic seconds, for the grace of tasks that left RUNNING
    :param callback_patience: how long a callback may wait for a worker that claims it
    :param why_waiting: why the artefact of a launch has not started, as far as it is known
    """

    def __init__(
        self,
        *,
        owner: str,
        team: str | None,
        clock: Callable[[], float],
        callback_patience: timedelta,
        why_waiting: Callable[[Launch], str | None],
    ) -> None:
        self._owner = owner
        self._team = team
        self._clock = clock
        self._callback_patience = callback_patience
        self._why_waiting = why_waiting
        self._tour = Tour(owner, team, clock)
        self._inherit_at = 0.0
        self._asked: dict[str, bool] = {}
        """What is to be looked at, and whether its subject has to be read for that; oldest first."""
        self._leaving: dict[str, None] = {}
        """Claimed launches whose tasks left RUNNING, in the order in which their grace ends."""

    def soon(self) -> None:
        """Let the next heartbeat look for what dead schedulers left, and begin to compare all flights."""
        self._inherit_at = 0.0
        self._tour.soon()

    def ask(self, tokens: Iterable[str]) -> None:
        """Let the next heartbeats look at launches that memory does not know, or not rightly.

        :param tokens: which ones; those that turn out to be no open launches of this executor are ignored
        """
        self._asked.update(dict.fromkeys(tokens, True))

    def sweep(self, connection: Connection, table: FlightTable, now: datetime) -> Swept:
        """Do what is due; ends that it writes show up among the unsettled launches.

        :param connection: a transaction of our own
        :param table: the flights in memory
        :param now: the present
        """
        swept = Swept()
        if self._clock() >= self._inherit_at:
            swept.inherits = True
            self._inherit(connection)
        swept.page = self._tour.page(connection, table)
        if swept.page is not None:
            self._compare(swept.page, table)
        self._ask_leaving(table)
        if asked := dict(islice(self._asked.items(), tour.PAGE)):
            swept.looked_at = asked.keys()
            self._look(connection, table, asked, swept, now)
        return swept

    def taken_in(self, swept: Swept) -> None:
        """Take note that what a sweep found was committed and taken in; else it is found again.

        :param swept: what it found
        """
        for token in swept.looked_at:
            self._asked.pop(token, None)
        if swept.inherits:
            self._inherit_at = self._clock() + tour.SWEEP_INTERVAL
        if swept.page is not None:
            self._tour.taken_in(swept.page)

    def _inherit(self, connection: Connection) -> None:
        taken = store.take_over_orphans(connection, owner=self._owner, team=self._team)
        if taken:
            log.info("Took over %d launches that dead schedulers left", len(taken))
            self.ask(taken)

    def _compare(self, page: Page, table: FlightTable) -> None:
        for one in page.standings:
            flight = table.get(one.token)
            if flight is None or _is_doubtful(flight, one):
                self._asked[one.token] = True
            elif flight.launch.state is one.state and flight.launch.sequence:
                continue
            elif one.state is LaunchState.CLAIMED:
                # The way of every launch that is not over in a moment: too common to be read in whole.
                flight.launch = flight.launch._replace(
                    sequence=one.sequence, state=one.state, claimant=one.claimant
                )
            else:
                self._asked.setdefault(one.token, False)
        if page.last:
            self.ask(token for token in page.unseen if table.get(token) is not None)

    def _ask_leaving(self, table: FlightTable) -> None:
        """Look again at tasks that left RUNNING, once their grace is over."""
        while self._leaving:
            token = next(iter(self._leaving))
            flight = table.get(token)
            if flight is not None and flight.left_at is not None:
                if self._clock() - flight.left_at < GRACE:
                    return
                self._asked[token] = True
            del self._leaving[token]

    def _look(
        self,
        connection: Connection,
        table: FlightTable,
        asked: Mapping[str, bool],
        swept: Swept,
        now: datetime,
    ) -> None:
        launches = store.by_tokens(connection, asked.keys())
        doubtful = [one for token, one in launches.items() if asked[token] and table.get(token) is not None]
        found = subjects.subjects_of(connection, doubtful)
        callbacks = [one.subject_id for one in doubtful if one.kind is LaunchKind.CALLBACK]
        claimed = store.callback_claimed_elsewhere(connection, callbacks)
        for token, is_doubtful in asked.items():
            flight, launch = table.get(token), launches.get(token)
            if launch is None or launch.scheduler_job_id != self._owner:
                if flight is not None:
                    swept.forget.add(token)
            elif flight is None:
                if launch.open and launch.team_name == self._team:
                    swept.unknown.append(launch)
            else:
                flight.launch = launch
                if is_doubtful:
                    elsewhere = bool(claimed.get(launch.subject_id, set()) - {token})
                    self._look_at(connection, flight, found.get(token), now, claimed_elsewhere=elsewhere)
        swept.unknown.sort(key=lambda launch: launch.sequence)
        _read_sequences(connection, table, swept.unknown)

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
        elif has_expired(launch, now, self._callback_patience):
            self._expire(connection, launch, now)
        elif launch.unclaimed:
            verdict = judge_submit(launch, subject, self._owner, claimed_elsewhere=claimed_elsewhere)
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
        why = self._why_waiting(launch)
        reason = f"no worker started it within {self._callback_patience.total_seconds():g} s"
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
            flight.left_at = self._clock()
            self._leaving.pop(flight.token, None)
            self._leaving[flight.token] = None
        if self._clock() - flight.left_at < GRACE:
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
            owner=self._owner,
            reason=reason,
            where=(LaunchRow.state == launch.state.value,),
        )


def _read_sequences(connection: Connection, table: FlightTable, unknown: Collection[Launch]) -> None:
    """Read the current launches of the keys of unknown ones, where nobody did since they were issued.

    Only their sequence tells which of the two is the newer one, and stays current.
    """
    current = [table.current(table.key_of(launch)) for launch in unknown]
    unread = {one.token: one for one in current if one is not None and not one.launch.sequence}
    for token, launch in store.by_tokens(connection, unread.keys()).items():
        unread[token].launch = launch


def _is_doubtful(flight: Flight, standing: Standing) -> bool:
    """Whether more must be read of a flight than where its launch and its task stand."""
    if standing.kind is LaunchKind.CALLBACK or flight.left_at is not None:
        return True
    if standing.state is LaunchState.CLAIMED:
        return standing.task_state not in subjects.RUNNING
    return standing.task_state != "queued"
