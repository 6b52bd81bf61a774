# SPDX-License-Identifier: Apache-2.0
"""The tour: all open launches of an executor are compared with memory, a page of them in a heartbeat.

However many there are, a heartbeat reads one page of states at most. What differs is named, and nothing
else is read or decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Connection

from dispatcher.dispatch.flights import FlightTable
from dispatcher.ledger.standing import Standing, open_page

PAGE = 500
"""Launches that a heartbeat compares, or looks at, at most."""

SWEEP_INTERVAL = 5.0
"""Seconds between the beginnings of two tours, at least."""

LONGEST_INTERVAL = 10.0
"""Seconds between two pages, at most."""

LONGEST_TOUR = 25.0
"""Seconds in which a tour has to get round, as long as heartbeats with a page each are enough for it."""

SHARE = 0.005
"""Part of the scheduler's time that tours may take, as long as those limits allow it."""


class Pace:
    """When to read a page: not before it is needed, and less often where a page takes long.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = 0.0
        self._began = 0.0
        self._tour_began = 0.0

    def begins(self, *, tour: bool) -> bool:
        """Whether it is time for a page; if so, it begins now.

        :param tour: it would be the first one of a tour
        """
        now = self._clock()
        if now < self._next:
            return False
        self._began = now
        if tour:
            self._tour_began = now
        return True

    def ended(self, *, pages: int, left: int) -> None:
        """Take note that a page was read, and that what it showed was taken in.

        :param pages: how many of the tour were read
        :param left: how many are left of it; with none, it has got round
        """
        now = self._clock()
        longest = min((now - self._began) / SHARE, LONGEST_INTERVAL)
        if left:
            # Heartbeats come when they come: what they are late is made up for by the pages that are left.
            time_left = max(0.0, self._tour_began + LONGEST_TOUR - now)
            self._next = now + min(longest, time_left / left)
        else:
            self._next = max(now + min(longest, LONGEST_TOUR / pages), self._tour_began + SWEEP_INTERVAL)

    def soon(self) -> None:
        """Let the next look find that it is time."""
        self._next = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    """What one heartbeat read.

    :param standings: open launches, with the states of their tasks
    :param unseen: what memory had when the tour began and was not met with in it yet
    :param last: the tour has got round: what is still unseen is no open launch of this executor
    """

    standings: list[Standing] = field(repr=False)
    unseen: set[str] = field(repr=False)
    last: bool


class Tour:
    """Goes round all open launches of one executor, again and again.

    :param owner: job id of this scheduler
    :param team: the team of this executor
    :param clock: monotonic seconds
    """

    def __init__(self, owner: str, team: str | None, clock: Callable[[], float]) -> None:
        self._owner = owner
        self._team = team
        self._pace = Pace(clock)
        self._after = 0
        self._pages = 0
        self._unseen: set[str] = set()
        self._again = False

    def soon(self) -> None:
        """Let a tour begin in the next heartbeat or, where one is underway, as soon as it has got round."""
        self._pace.soon()
        self._again = self._after > 0

    def page(self, connection: Connection, table: FlightTable) -> Page | None:
        """Read a page if it is time; until ``taken_in``, it is the same one that is read again.

        :param connection: a transaction of our own
        :param table: the flights in memory
        """
        begins = self._after == 0
        if not self._pace.begins(tour=begins):
            return None
        unseen = set(table.tokens()) if begins else self._unseen
        found = open_page(connection, self._owner, self._team, after=self._after, size=PAGE)
        return Page(found, unseen - {one.token for one in found}, last=len(found) < PAGE)

    def taken_in(self, page: Page) -> None:
        """Take note that what a page showed was committed and taken in.

        :param page: what was read
        """
        self._pages += 1
        left = 0 if page.last else max(1, math.ceil(len(page.unseen) / PAGE))
        self._pace.ended(pages=self._pages, left=left)
        if left:
            self._after, self._unseen = page.standings[-1].sequence, page.unseen
            return
        self._after, self._pages, self._unseen = 0, 0, set()
        if self._again:
            self.soon()
