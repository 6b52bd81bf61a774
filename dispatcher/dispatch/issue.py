# SPDX-License-Identifier: Apache-2.0
"""Issuing: from a workload that Airflow queues to a row in the ledger, in Airflow's own transaction."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from airflow.executors.workloads import ExecuteCallback, ExecuteTask
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dispatcher.compat import region_of
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import LaunchKind, LaunchState
from dispatcher.domain.routing import Router
from dispatcher.domain.workload import WorkloadKind, WorkloadView
from dispatcher.ledger import store

POD_KEYS = ("pod_override", "pod_template_file")

NAME_LIMIT = 250
"""Longest name that the ledger keeps, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """Issues launches; writes nothing but the ledger row and, where one is missing, the token (rules 1, 2).

    :param router: chooses the route
    :param owner: job id of this scheduler
    :param team: the team of this executor
    :param ids_may_be_stale: other executors or teams share the scheduler, so a task instance may bring
        the id of an earlier launch
    """

    router: Router
    owner: str
    team: str | None
    ids_may_be_stale: bool

    def issue(self, workload: ExecuteTask | ExecuteCallback, session: Session, now: datetime) -> Launch:
        """Add the ledger row of a workload and return the launch.

        :param workload: what Airflow queues; a task may get its token written into it
        :param session: the scheduler's session, which the caller commits
        :param now: the present
        """
        if isinstance(workload, ExecuteTask):
            launch = self._task_launch(workload, self._task_token(workload, session), session, now)
        else:
            launch = self._callback_launch(workload, now)
        store.issue(session, launch)
        return launch

    def _task_token(self, workload: ExecuteTask, session: Session) -> str:
        token = workload.ti.external_executor_id
        if _is_token(token) and not (self.ids_may_be_stale and store.by_token(session.connection(), token)):
            return token
        token = str(uuid.uuid4())
        session.execute(
            update(TaskInstance)
            .where(TaskInstance.id == workload.ti.id)
            .values(external_executor_id=token)
            .execution_options(synchronize_session=False)
        )
        workload.ti.external_executor_id = token
        return token

    def _task_launch(self, workload: ExecuteTask, token: str, session: Session, now: datetime) -> Launch:
        ti = workload.ti
        view = task_view(workload, team=self.team, pool=self._pool(ti.id, session))
        route = self.router.route(view)
        return Launch(
            sequence=0,
            token=token,
            kind=LaunchKind.TASK,
            subject_id=str(ti.id),
            state=LaunchState.ISSUED,
            backend=route.backend,
            queue=route.queue,
            route_reason=route.reason,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=ti.key.map_index,
            region_id=region_of(ti),
            try_number=ti.try_number,
            scheduler_job_id=self.owner,
            issued_at=now,
            team_name=self.team,
        )

    def _pool(self, task_instance_id: uuid.UUID, session: Session) -> str | None:
        # The workload does not carry the pool; it is read only where a rule asks for it.
        if not any(rule.match.pool is not None for rule in self.router.rules):
            return None
        return session.scalar(select(TaskInstance.pool).where(TaskInstance.id == task_instance_id))

    def _callback_launch(self, workload: ExecuteCallback, now: datetime) -> Launch:
        view = callback_view(workload, team=self.team)
        route = self.router.route(view)
        return Launch(
            sequence=0,
            token=str(uuid.uuid4()),
            kind=LaunchKind.CALLBACK,
            subject_id=str(workload.callback.id),
            state=LaunchState.ISSUED,
            backend=route.backend,
            queue=route.queue,
            route_reason=route.reason,
            dag_id=view.dag_id,
            run_id=view.run_id,
            scheduler_job_id=self.owner,
            issued_at=now,
            team_name=self.team,
        )


def _is_token(external_id: str | None) -> TypeGuard[str]:
    """Whether an id can be a launch token; other executors leave theirs, such as the number of a job."""
    if external_id is None:
        return False
    try:
        return str(uuid.UUID(external_id)) == external_id
    except ValueError:
        return False


def task_view(workload: ExecuteTask, *, team: str | None, pool: str | None) -> WorkloadView:
    """Return what routing needs to know of a task."""
    ti = workload.ti
    config = ti.executor_config
    return WorkloadView(
        kind=WorkloadKind.TASK,
        queue=ti.queue,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        pool=pool,
        team=team,
        has_pod_override=isinstance(config, dict) and any(config.get(key) for key in POD_KEYS),
        priority=ti.priority_weight,
    )


def callback_view(workload: ExecuteCallback, *, team: str | None) -> WorkloadView:
    """Return what routing needs to know of a callback."""
    data: dict[str, Any] = workload.callback.data
    dag_id = _text(data.get("dag_id"))
    return WorkloadView(
        kind=WorkloadKind.CALLBACK,
        queue=_text(data.get("queue")),
        dag_id=dag_id,
        run_id=_run_id_of_callback(workload, dag_id),
        team=team,
        callback=_text(data.get("path")),
    )


def _text(value: Any) -> str | None:
    """Return a value of a callback's data, which may be anything, if it is a name that can be kept."""
    return value if isinstance(value, str) and 0 < len(value) <= NAME_LIMIT else None


def _run_id_of_callback(workload: ExecuteCallback, dag_id: str | None) -> str | None:
    # Airflow keeps a callback's run only as part of its log path: executor_callbacks/<dag>/<run>/<id>.
    prefix, suffix = f"executor_callbacks/{dag_id}/", f"/{workload.callback.id}"
    path = workload.log_path or ""
    if not dag_id or not path.startswith(prefix) or not path.endswith(suffix):
        return None
    return path[len(prefix) : -len(suffix)]
