# SPDX-License-Identifier: Apache-2.0
"""What other schedulers, users and the scheduler itself do to a task whose launch is still in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from tests.support import rows

if TYPE_CHECKING:
    from typing import Any

    from dispatcher.executor import HybridExecutor


def reset_elsewhere(token: str, **columns: Any) -> str:
    """Let another scheduler reset a task and queue it for its next try; return the new token.

    The task instance gets a new UUID, and another scheduler's job id.

    :param columns: further columns of the task instance
    """
    with create_session(scoped=False) as session:
        other = rows.make_scheduler_job(session)
        found = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == token))
        values = {
            "id": uuid4(),
            "external_executor_id": str(uuid4()),
            "try_number": found.try_number + 1,
            "queued_by_job_id": other.id,
            **columns,
        }
        for name, value in values.items():
            setattr(found, name, value)
        return str(found.external_executor_id)


def revoke_stuck(executor: HybridExecutor, subject_id: str) -> None:
    """Let the scheduler find a task stuck in queued: it revokes it, and puts it back to scheduled."""
    with create_session(scoped=False) as session:
        found = session.get(TaskInstance, UUID(subject_id), with_for_update=True)
        executor.revoke_task(ti=found)
        found.state = "scheduled"
