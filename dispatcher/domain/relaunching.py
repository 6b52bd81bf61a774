# SPDX-License-Identifier: Apache-2.0
"""Launching again what never ran (rule 6): whether it may be, and how often it was, as pure functions."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.domain.protocol import CALLBACK_FINISHED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dispatcher.domain.launch import Launch, Subject

_RELAUNCH = "relaunch "


def may_relaunch(launch: Launch, subject: Subject | None, *, others: Collection[Launch] = ()) -> bool:
    """Whether a launch that never ran may be replaced by a new one of the same subject (rule 6).

    :param launch: its ledger row
    :param subject: its subject, locked
    :param others: the other launches of the same callback: one that may run it, or did, needs no help
    """
    if subject is None or not launch.unclaimed:
        return False
    if launch.kind is LaunchKind.CALLBACK:
        served = any(other.open or other.was_claimed for other in others)
        return subject.state not in CALLBACK_FINISHED and not served
    return subject.state == "queued" and subject.token == launch.token


def relaunches(launches: Sequence[Launch]) -> int:
    """Return how many relaunches in a row led to the newest launch of a subject.

    A launch that Airflow asked for (a retry, a deferred task that goes on) begins a new row.

    :param launches: of one subject, oldest first
    """
    by_us = takewhile(lambda launch: launch.route_reason.startswith(_RELAUNCH), reversed(launches))
    return sum(1 for _ in by_us)


def relaunch_reason(launch: Launch, number: int) -> str:
    """Return the ``route_reason`` of the launch that replaces another: it is how relaunches are counted.

    :param launch: the one that is replaced
    :param number: which relaunch in a row it is
    """
    original = launch.route_reason
    if original.startswith(_RELAUNCH):
        original = original.partition(": ")[2]
    return f"{_RELAUNCH}{number}: {original}"
