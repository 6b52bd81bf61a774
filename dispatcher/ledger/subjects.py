# SPDX-License-Identifier: Apache-2.0
"""Reads and locks of the rows that launches are about: task instances and callbacks.

These go through a connection and never through the ORM's identity map, so that what is read is what is in
the database, and so that the fence's own statements do not trigger the fence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from airflow.models.callback import Callback
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Connection, Row, Select, false, select, update

from dispatcher.compat import PLACE_COLUMNS, Place, at_the_place_of, of_the_present, place_of, place_of_row
from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.ledger.models import LaunchRow

CHUNK = 400
"""Subjects per statement: SQLite nests no more than 1,000 conditions, and each run may need its own."""

RUNNING = ("running", "restarting")
"""The states of a task instance whose launch is claimed, and goes on."""

OwnExecutors = Collection[str | None]
"""The names by which a task instance says that it belongs to this executor; None is "the default one"."""

_TASK_COLUMNS = (
    TaskInstance.id,
    TaskInstance.state,
    TaskInstance.external_executor_id,
    TaskInstance.last_heartbeat_at,
    TaskInstance.executor,
    *PLACE_COLUMNS,
)


def _run_of(launch: Launch) -> tuple[str, str]:
    return (launch.dag_id or "", launch.run_id or "")


def lock_task_instance(connection: Connection, task_instance_id: UUID) -> Subject | None:
    """Lock and read one task instance, or return None.

    :param connection: the caller's transaction
    :param task_instance_id: its UUID
    """
    _hold_writes(connection)
    statement = _tasks().where(TaskInstance.id == task_instance_id, of_the_present()).with_for_update()
    row = connection.execute(statement).one_or_none()
    return None if row is None else _task(row, None)


def is_there(connection: Connection, task_instance_id: UUID) -> bool:
    """Whether a task instance is there, and not archived.

    :param connection: the caller's transaction
    :param task_instance_id: its UUID
    """
    statement = select(TaskInstance.id).where(TaskInstance.id == task_instance_id, of_the_present())
    return connection.execute(statement).one_or_none() is not None


def task_instances_at(
    connection: Connection, launches: Iterable[Launch], own: OwnExecutors | None = None
) -> dict[Place, Subject]:
    """Read, in one statement for ``CHUNK`` and without locks, the task instances where ``launches`` belong.

    :param connection: the caller's transaction
    :param launches: launches of tasks; others are ignored
    :param own: the names of this executor; None to take every task instance as ours
    """
    # Launches of one run stand together, so that a chunk asks for few of them.
    tasks = iter(sorted((one for one in launches if one.kind is LaunchKind.TASK), key=_run_of))
    found: dict[Place, Subject] = {}
    while chunk := list(islice(tasks, CHUNK)):
        criterion = at_the_place_of(chunk)
        assert criterion is not None
        rows = connection.execute(_tasks().where(criterion))
        found |= {place_of_row(row): _task(row, own) for row in rows}
    return found


def lock_callback(connection: Connection, callback_id: UUID) -> Subject | None:
    """Lock and read one callback, or return None.

    :param connection: the caller's transaction
    :param callback_id: its UUID
    """
    _hold_writes(connection)
    statement = select(Callback.id, Callback.state).where(Callback.id == callback_id).with_for_update()
    row = connection.execute(statement).one_or_none()
    return None if row is None else Subject(id=str(row.id), state=_lower(row.state))


def callbacks(connection: Connection, callback_ids: Collection[str]) -> dict[str, Subject]:
    """Read callbacks by UUID, in one statement for ``CHUNK`` and without locks.

    :param connection: the caller's transaction
    :param callback_ids: their UUIDs
    """
    ids = iter(callback_ids)
    found: dict[str, Subject] = {}
    while chunk := list(islice(ids, CHUNK)):
        statement = select(Callback.id, Callback.state).where(Callback.id.in_([UUID(i) for i in chunk]))
        for row in connection.execute(statement):
            found[str(row.id)] = Subject(id=str(row.id), state=_lower(row.state))
    return found


def subjects_of(
    connection: Connection, launches: Collection[Launch], own: OwnExecutors | None = None
) -> dict[str, Subject]:
    """Read the subjects of launches, two statements for ``CHUNK``; the result is keyed by token.

    :param connection: the caller's transaction
    :param launches: launches of tasks and callbacks
    :param own: see ``task_instances_at``
    """
    tasks = task_instances_at(connection, launches, own)
    ids = {launch.subject_id for launch in launches if launch.kind is LaunchKind.CALLBACK}
    found_callbacks = callbacks(connection, ids)
    found: dict[str, Subject] = {}
    for launch in launches:
        if launch.kind is LaunchKind.CALLBACK:
            subject = found_callbacks.get(launch.subject_id)
        else:
            subject = tasks.get(place_of(launch))
        if subject is not None:
            found[launch.token] = subject
    return found


def lock_subject(connection: Connection, launch: Launch, subject_id: str) -> Subject | None:
    """Lock and read the subject of a launch, or return None.

    :param connection: the caller's transaction
    :param launch: a launch of it
    :param subject_id: its present UUID: that of a task changes when it is cleared
    """
    lock = lock_callback if launch.kind is LaunchKind.CALLBACK else lock_task_instance
    return lock(connection, UUID(subject_id))


def renew_token(connection: Connection, subject: Subject, token: str, now: datetime) -> bool:
    """Write a new launch token to a task instance that is QUEUED under its old one (rule 6).

    :param connection: a transaction that has the row's lock
    :param subject: the task instance, with the old token
    :param token: the new one
    :param now: from when on it counts as queued
    :returns: whether it was so
    """
    hit = connection.execute(
        update(TaskInstance)
        .where(
            TaskInstance.id == UUID(subject.id),
            TaskInstance.state == "queued",
            TaskInstance.external_executor_id == subject.token,
            of_the_present(),
        )
        .values(external_executor_id=token, queued_dttm=now)
    )
    return hit.rowcount == 1


def _hold_writes(connection: Connection) -> None:
    """Take SQLite's one write lock until the transaction ends, in place of the row locks that it lacks.

    Without it a SELECT there runs outside any transaction, and what it read may change before the write that
    it was read for. An UPDATE takes the lock even though it hits no row.

    :param connection: the caller's transaction
    """
    if connection.dialect.name == "sqlite":
        connection.execute(update(LaunchRow).where(false()).values(token=LaunchRow.token))


def _tasks() -> Select[*tuple[Any, ...]]:
    return select(*_TASK_COLUMNS)


def _task(row: Row[Any], own: OwnExecutors | None) -> Subject:
    return Subject(
        id=str(row.id),
        state=_lower(row.state),
        token=row.external_executor_id,
        heartbeat_at=row.last_heartbeat_at,
        ours=own is None or row.executor in own,
    )


def _lower(state: str | None) -> str | None:
    return None if state is None else str(getattr(state, "value", state)).lower()


def uuid_of(launch: Launch) -> UUID:
    """Return the UUID of the subject of a launch."""
    return UUID(launch.subject_id)
