# SPDX-License-Identifier: Apache-2.0
"""Where the open launches of an executor stand, a page at a time: what is compared with memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Connection, ScalarSelect, func, select

from dispatcher.compat import at_the_place_in
from dispatcher.domain.lifecycle import OPEN, LaunchKind, LaunchState
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.rows import of_team, values_of

_COLUMNS = (LaunchRow.sequence, LaunchRow.token, LaunchRow.kind, LaunchRow.state, LaunchRow.claimant)
_STATES = {state.value: state for state in LaunchState}
_KINDS = {kind.value: kind for kind in LaunchKind}


class Standing(NamedTuple):
    """How far an open launch is, and its task.

    :param sequence: its place in the order of pages
    :param task_state: the state of the task instance that carries its token; None where there is none
    """

    sequence: int
    token: str
    kind: LaunchKind
    state: LaunchState
    claimant: str | None
    task_state: str | None


def open_page(
    connection: Connection, owner: str, team: str | None, *, after: int, size: int
) -> list[Standing]:
    """Read the next open launches of one executor in the order of their sequence.

    :param connection: the caller's transaction
    :param owner: the job id of its scheduler
    :param team: its team: the executors of several teams share one scheduler
    :param after: the sequence of the last launch before them
    :param size: how many at most
    """
    # The columns of the owner's index, in its order: the next page is found without what was read before.
    statement = (
        select(*_COLUMNS, _task_state())
        .where(
            LaunchRow.settled_at.is_(None),
            LaunchRow.scheduler_job_id == owner,
            LaunchRow.ended_at.is_(None),
            LaunchRow.sequence > after,
            LaunchRow.state.in_(values_of(OPEN)),
            of_team(team),
        )
        .order_by(LaunchRow.settled_at, LaunchRow.scheduler_job_id, LaunchRow.ended_at, LaunchRow.sequence)
        .limit(size)
    )
    return [
        Standing(sequence, token, _KINDS[kind], _STATES[state], claimant, task_state)
        for sequence, token, kind, state, claimant, task_state in connection.execute(statement)
    ]


def _task_state() -> ScalarSelect[Any]:
    """Return the state of the task instance that carries a launch's token.

    Asked for row by row, by the index of the place. A join would be left to a planner that may know nothing
    of either table, and compares each row of one with each of the other then.
    """
    token = TaskInstance.external_executor_id == LaunchRow.token
    return select(func.max(TaskInstance.state)).where(at_the_place_in(LaunchRow), token).scalar_subquery()
