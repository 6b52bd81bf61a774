# SPDX-License-Identifier: Apache-2.0
"""What the tour reads from the metadata database: the ledger, callbacks, and workloads made anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from airflow.executors.workloads import ExecuteTask
from airflow.models.callback import ExecutorCallback
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.ledger import store

if TYPE_CHECKING:
    from collections.abc import Collection

    from dispatcher.domain.launch import Launch

LIMIT = 1000


@dataclass(frozen=True, slots=True)
class CallbackRecord:
    """A callback that runs on the executor.

    :param path: import path of its function
    :param state: Airflow's state
    """

    id: str
    path: str
    state: str | None


def newest_sequence() -> int:
    """Return the sequence of the newest launch; 0 if there is none."""
    return max((launch.sequence for launch in _recent()), default=0)


def launches_since(sequence: int) -> list[Launch]:
    """Return the launches that are newer than ``sequence``, oldest first."""
    return [launch for launch in reversed(_recent()) if launch.sequence > sequence]


def callbacks(ids: Collection[str]) -> list[CallbackRecord]:
    """Return callbacks by UUID; those that do not exist are absent."""
    statement = select(ExecutorCallback.id, ExecutorCallback.data, ExecutorCallback.state).where(
        ExecutorCallback.id.in_([UUID(one) for one in ids])
    )
    with create_session(scoped=False) as session:
        return [
            CallbackRecord(str(row.id), row.data["path"], row.state) for row in session.execute(statement)
        ]


def workload_of(launch: Launch) -> ExecuteTask:
    """Return the workload of a task's launch as the scheduler hands it to an executor, not signed yet.

    :param launch: a launch of a task instance that still exists
    """
    with create_session(scoped=False) as session:
        instance = session.scalars(
            select(TaskInstance).where(TaskInstance.id == UUID(launch.subject_id))
        ).one()
        return ExecuteTask.make(instance)


def _recent() -> list[Launch]:
    with create_session(scoped=False) as session:
        return store.recent(session.connection(), limit=LIMIT)
