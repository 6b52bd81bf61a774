# SPDX-License-Identifier: Apache-2.0
"""The write-ahead of a send, and the older launches that it replaces (rules 3 and 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import ColumnElement, Connection, and_, case, select
from sqlalchemy.orm import aliased

from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import OPEN, BackendName, LaunchEvent, LaunchKind, LaunchState, sources
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.rows import COLUMNS, among, chunks_for, compare_and_set, launch_of, values_of
from dispatcher.ledger.store import queued_under_this_token

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime


def submit_tasks(
    connection: Connection, tokens: Collection[str], *, owner: str, now: datetime
) -> dict[str, int]:
    """Move launches of tasks to submitted, if their task instances are QUEUED under these tokens (rule 4).

    :param connection: the caller's transaction
    :param tokens: the launches
    :param owner: the scheduler that must own them
    :param now: when
    :returns: of those that were hit, the sequence
    """
    hit: dict[str, int] = {}
    for chunk in chunks_for(connection, tokens):
        # The tokens are named for the task instances too, where nothing else is known to select few of them:
        # a database without statistics compares each launch with every queued task instance otherwise.
        queued = queued_under_this_token(among(connection, TaskInstance.external_executor_id, chunk))
        hit |= compare_and_set(
            connection, chunk, _may_submit(LaunchKind.TASK, owner), _as_submitted(now), also=(queued,)
        )
    return hit


def submit_callbacks(
    connection: Connection, tokens: Collection[str], *, owner: str, now: datetime
) -> frozenset[str]:
    """Move launches of callbacks to submitted (rule 4).

    :param connection: the caller's transaction
    :param tokens: the launches
    :param owner: the scheduler that must own them
    :param now: when
    :returns: the tokens that were hit
    """
    conditions = _may_submit(LaunchKind.CALLBACK, owner)
    return frozenset(compare_and_set(connection, tokens, conditions, _as_submitted(now)))


def _may_submit(kind: LaunchKind, owner: str) -> list[ColumnElement[bool]]:
    return [
        LaunchRow.kind == kind.value,
        LaunchRow.state.in_(values_of(sources(LaunchEvent.SUBMIT, kind))),
        LaunchRow.scheduler_job_id == owner,
    ]


def _as_submitted(now: datetime) -> dict[str, Any]:
    # See ``Launch.external_id_ahead``.
    named_by_token = (LaunchRow.backend == BackendName.CELERY.value, LaunchRow.token)
    return {
        "state": LaunchState.SUBMITTED.value,
        "submitted_at": now,
        "external_id": case(named_by_token, else_=LaunchRow.external_id),
    }


def older_open(connection: Connection, tokens: Collection[str]) -> list[Launch]:
    """Return open launches of tasks that have a newer launch among ``tokens`` (rule 3), by token.

    :param connection: the caller's transaction
    :param tokens: the newer launches
    """
    newer = aliased(LaunchRow)
    found: dict[str, Launch] = {}
    for chunk in chunks_for(connection, tokens):
        statement = (
            select(*COLUMNS)
            .join(
                newer,
                and_(
                    newer.dag_id == LaunchRow.dag_id,
                    newer.run_id == LaunchRow.run_id,
                    newer.task_id == LaunchRow.task_id,
                    newer.map_index == LaunchRow.map_index,
                    newer.region_id.is_not_distinct_from(LaunchRow.region_id),
                    newer.sequence > LaunchRow.sequence,
                ),
            )
            .where(
                among(connection, newer.token, chunk),
                newer.kind == LaunchKind.TASK.value,
                LaunchRow.kind == LaunchKind.TASK.value,
                LaunchRow.state.in_(values_of(OPEN)),
            )
        )
        # Several of the newer ones may make the same launch old.
        found |= {row.token: launch_of(row) for row in connection.execute(statement)}
    return [found[token] for token in sorted(found)]
