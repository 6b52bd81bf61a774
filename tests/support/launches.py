# SPDX-License-Identifier: Apache-2.0
"""Launches for tests: as plain views, and as rows of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import ENDED, BackendName, LaunchKind, LaunchState
from tests.support.rows import DAG_ID, RUN_ID, TASK_ID, utcnow

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

OWNER = "1"
"""The job id of the scheduler that owns a launch, unless a test says otherwise."""


def build_launch(**columns: Any) -> Launch:
    """Return a launch of a task with a token of its own, just issued.

    :param columns: fields that differ
    """
    values: dict[str, Any] = {
        "sequence": 0,
        "token": str(uuid4()),
        "kind": LaunchKind.TASK,
        "subject_id": str(uuid4()),
        "state": LaunchState.ISSUED,
        "backend": BackendName.CELERY,
        "queue": "default",
        "dag_id": DAG_ID,
        "run_id": RUN_ID,
        "task_id": TASK_ID,
        "try_number": 1,
        "route_reason": "default",
        "scheduler_job_id": OWNER,
        "issued_at": utcnow(),
    }
    if columns.get("state") in ENDED:
        values["ended_at"] = utcnow()
    return Launch(**values | columns)


def add_launch(session: Session, **columns: Any) -> Launch:
    """Add a launch to the ledger, in any state, and return it as read; see ``build_launch``."""
    from dispatcher.ledger import store

    launch = build_launch(**columns)
    store.issue(session, launch)
    session.flush()
    found = store.by_token(session.connection(), launch.token)
    assert found is not None
    return found


def add_launch_of(session: Session, instance: TaskInstance, **columns: Any) -> Launch:
    """Add the launch whose token ``instance`` carries."""
    from dispatcher.compat import region_of

    values = {
        "token": instance.external_executor_id,
        "subject_id": str(instance.id),
        "dag_id": instance.dag_id,
        "run_id": instance.run_id,
        "task_id": instance.task_id,
        "map_index": instance.map_index,
        "region_id": region_of(instance),
        "try_number": instance.try_number,
    }
    return add_launch(session, **values | columns)
