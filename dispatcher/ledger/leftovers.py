# SPDX-License-Identifier: Apache-2.0
"""What housekeeping asks of the database: who is alive, and who clears up after an ended launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.jobs.job import Job
from sqlalchemy import Connection, func, or_, select, update

from dispatcher.domain.lifecycle import BackendName
from dispatcher.ledger.models import LaunchRow

if TYPE_CHECKING:
    from collections.abc import Collection


def schedulers_alive(connection: Connection) -> list[str]:
    """Return the job ids of the schedulers that run, the oldest first.

    :param connection: the caller's transaction
    """
    statement = select(Job.id).where(Job.job_type == "SchedulerJob", Job.state == "running").order_by(Job.id)
    return [str(job_id) for job_id in connection.scalars(statement)]


def inherit_settled(
    connection: Connection, tokens: Collection[str], *, owner: str, alive: Collection[str]
) -> set[str]:
    """Become the one who clears up after settled launches of dead schedulers; return the tokens won.

    Of several schedulers that try, one wins each.

    :param connection: the caller's transaction
    :param tokens: the launches
    :param owner: the new owner's job id
    :param alive: schedulers that run: what is theirs stays theirs
    """
    won: set[str] = set()
    for token in sorted(tokens):
        result = connection.execute(
            update(LaunchRow)
            .where(
                LaunchRow.token == token,
                LaunchRow.settled_at.is_not(None),
                or_(LaunchRow.scheduler_job_id.is_(None), LaunchRow.scheduler_job_id.not_in(list(alive))),
            )
            .values(scheduler_job_id=owner)
        )
        if result.rowcount:
            won.add(token)
    return won


LOOK_BACK = 500
"""How many of the newest launches tell at the first look which backends are used."""


def backends_used(connection: Connection, *, after: int) -> tuple[set[BackendName], int]:
    """Return the backends that launches were sent to lately, and the newest sequence that was looked at.

    :param connection: the caller's transaction
    :param after: launches up to this sequence are known already
    """
    newest = connection.scalar(select(func.max(LaunchRow.sequence))) or 0
    first = max(after, newest - LOOK_BACK)
    lately = select(LaunchRow.backend).where(LaunchRow.sequence > first, LaunchRow.sequence <= newest)
    return {BackendName(backend) for backend in connection.scalars(lately.distinct())}, max(after, newest)
