# SPDX-License-Identifier: Apache-2.0
"""Pruning: the rows of launches that ended long ago are removed (rule 20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Connection, delete, or_, select

from dispatcher.domain.lifecycle import ENDED
from dispatcher.domain.protocol import TASK_FINISHED, may_be_pruned
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.rows import COLUMNS, chunks, launch_of, values_of
from dispatcher.ledger.store import carried_by_its_task
from dispatcher.ledger.subjects import subjects_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from sqlalchemy import ColumnElement, Delete

    from dispatcher.domain.launch import Launch


def old_launches(
    connection: Connection, *, before: datetime, after: Launch | None, limit: int
) -> list[Launch]:
    """Read launches that are settled and ended before a time, those that were settled first come first.

    :param connection: the caller's transaction
    :param before: the time
    :param after: the last one of the page before; None for the first page
    :param limit: how many at most
    """
    statement = select(*COLUMNS).where(*_old(before))
    if after is not None:
        statement = statement.where(
            LaunchRow.settled_at >= after.settled_at,
            or_(LaunchRow.settled_at > after.settled_at, LaunchRow.sequence > after.sequence),
        )
    # The index begins with settled_at. Who waits behind what may not be removed yet has his turn as well.
    ordered = statement.order_by(LaunchRow.settled_at, LaunchRow.sequence).limit(limit)
    return [launch_of(row) for row in connection.execute(ordered)]


def remove(connection: Connection, launches: Collection[Launch], *, before: datetime) -> int:
    """Remove those of some old launches that nothing may ask for any more; return how many that were.

    :param connection: the caller's transaction
    :param launches: see ``old_launches``
    :param before: the time before which they must have ended
    """
    subjects = subjects_of(connection, launches)
    prunable = [one.token for one in launches if may_be_pruned(one, subjects.get(one.token), before)]
    return sum(connection.execute(removal(chunk, before)).rowcount for chunk in chunks(prunable))


def removal(tokens: Collection[str], before: datetime) -> Delete:
    """Return the statement that removes old launches, but for those that an unfinished task carries.

    A task may have been cleared since it was read. A callback that has ended stays as it is.

    :param tokens: the launches
    :param before: the time before which they must have ended
    """
    unfinished = or_(TaskInstance.state.is_(None), TaskInstance.state.not_in(sorted(TASK_FINISHED)))
    carried = carried_by_its_task(unfinished)
    return delete(LaunchRow).where(LaunchRow.token.in_(tokens), *_old(before), ~carried)


def _old(before: datetime) -> tuple[ColumnElement[bool], ...]:
    # What is settled ended before: to say so of settled_at too lets the index find it.
    return (
        LaunchRow.state.in_(values_of(ENDED)),
        LaunchRow.settled_at < before,
        LaunchRow.ended_at < before,
    )
