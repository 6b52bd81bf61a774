# SPDX-License-Identifier: Apache-2.0
"""Relaunching: one transaction that replaces a launch which never ran by a new one (rule 6).

From its commit on the old artefact can never claim: its launch has ended, and its task carries another token.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection

from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState
from dispatcher.domain.relaunching import may_relaunch, relaunch_reason, relaunches
from dispatcher.ledger import store, subjects
from dispatcher.ledger.models import LaunchRow

_REASON_LENGTH = LaunchRow.route_reason.type.length


class NotRelaunched(StrEnum):
    """Why a launch was not replaced; nothing was written then."""

    MOVED_ON = "moved on"
    """It was claimed, ended or taken over meanwhile, or its subject does not wait for it any more."""
    SPENT = "spent"
    """It may not be launched again as often as that; the locks are held."""
    SERVED = "served"
    """Another launch of the callback may still run it, which makes this one needless; the locks are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunch:
    """What a relaunch needs to know beside the launch.

    :param token: the new token
    :param owner: job id of this scheduler, which must own the launch
    :param limit: how many relaunches in a row there may be
    :param reason: why the old launch ended, for people
    :param now: the present
    """

    token: str
    owner: str
    limit: int
    reason: str
    now: datetime


def relaunch(
    connection: Connection, seen: Launch, subject_id: str, order: Relaunch
) -> tuple[Launch, int] | NotRelaunched:
    """Replace a launch, if it still is what it was seen to be.

    :param connection: a transaction of our own, with nothing written yet: the subject is locked first
    :param seen: the launch as it was judged
    :param subject_id: the present UUID of its subject
    :param order: see ``Relaunch``
    :returns: the new launch, and how many relaunches in a row it makes
    :raises RuntimeError: a locked row changed; the transaction must be rolled back
    """
    subject = subjects.lock_subject(connection, seen, subject_id)
    old = store.by_token(connection, seen.token, lock=True)
    if subject is None or old is None or old.state is not seen.state or old.scheduler_job_id != order.owner:
        return NotRelaunched.MOVED_ON
    launches = store.launches_of(connection, old.kind, [old.subject_id])[old.subject_id]
    others = [one for one in launches if one.token != old.token and old.kind is LaunchKind.CALLBACK]
    if not may_relaunch(old, subject):
        return NotRelaunched.MOVED_ON
    if not may_relaunch(old, subject, others=others):
        return NotRelaunched.SERVED
    number = relaunches(launches) + 1
    if number > order.limit:
        return NotRelaunched.SPENT
    if not store.record(
        connection,
        LaunchEvent.SUPERSEDE,
        (old.token,),
        now=order.now,
        kind=old.kind,
        owner=order.owner,
        reason=order.reason,
    ):
        return NotRelaunched.MOVED_ON
    if old.kind is LaunchKind.TASK and not subjects.renew_token(connection, subject, order.token, order.now):
        raise RuntimeError(f"the task instance of launch {old.token} changed under its lock")
    store.insert_now(connection, _successor(old, subject.id, number, order))
    new = store.by_token(connection, order.token)
    assert new is not None
    return new, number


def _successor(old: Launch, subject_id: str, number: int, order: Relaunch) -> Launch:
    return old._replace(
        token=order.token,
        subject_id=subject_id,
        state=LaunchState.ISSUED,
        route_reason=relaunch_reason(old, number)[:_REASON_LENGTH],
        external_id=None,
        issued_at=order.now,
        submitted_at=None,
        ended_at=None,
        end_reason=None,
    )
