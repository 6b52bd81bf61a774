# SPDX-License-Identifier: Apache-2.0
"""The plan of a seed: what is killed, and when. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PAUSE_SECONDS = (4.0, 16.0)
"""Shortest and longest time between two blows."""

AWAY_SECONDS = (0.5, 10.0)
"""Shortest and longest time until what was struck is started again, or answers again."""


class Blow(StrEnum):
    """What can be done to a running system."""

    SCHEDULER_KILLED = "scheduler killed"
    SCHEDULER_ENDED = "scheduler ended"
    SCHEDULER_STALLED = "scheduler stalled"
    WORKER_KILLED = "worker killed"
    WORKER_PARENT_KILLED = "worker parent killed"
    WORKER_ENDED = "worker ended"
    POD_REMOVED = "pod removed"
    POD_DELETED = "pod deleted"
    BROKER_CONNECTIONS_CUT = "broker connections cut"
    BROKER_STALLED = "broker stalled"
    BROKER_RESTARTED = "broker restarted"
    API_SERVER_KILLED = "api server killed"


WEIGHTS = {
    Blow.SCHEDULER_KILLED: 3,
    Blow.SCHEDULER_ENDED: 1,
    Blow.SCHEDULER_STALLED: 1,
    Blow.WORKER_KILLED: 3,
    Blow.WORKER_PARENT_KILLED: 1,
    Blow.WORKER_ENDED: 1,
    Blow.POD_REMOVED: 3,
    Blow.POD_DELETED: 3,
    Blow.BROKER_CONNECTIONS_CUT: 3,
    Blow.BROKER_STALLED: 1,
    Blow.BROKER_RESTARTED: 1,
    Blow.API_SERVER_KILLED: 2,
}


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow of a plan.

    :param at: seconds after the begin
    :param pick: which of those that are there, as a part of one
    :param away: seconds until it is started again, or answers again
    """

    at: float
    blow: Blow
    pick: float
    away: float


def strikes(seed: int) -> Iterator[Strike]:
    """Yield the strikes of a seed, the same ones each time, without end."""
    chance = random.Random(seed)
    blows, weights = list(WEIGHTS), list(WEIGHTS.values())
    at = 0.0
    while True:
        at += chance.uniform(*PAUSE_SECONDS)
        (blow,) = chance.choices(blows, weights)
        yield Strike(at, blow, chance.random(), chance.uniform(*AWAY_SECONDS))
