# SPDX-License-Identifier: Apache-2.0
"""Workloads as executors send them, for tests of workers."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import jwt

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecuteCallback, ExecuteTask

BUNDLE = "dags-folder"
DAG_FILE = "guarded_dag.py"


def unsigned_token(subject: str, launch_token: str | None, scope: str = "workload") -> str:
    """Return a JWT that a worker can read and no API server would accept."""
    claims: dict[str, Any] = {"sub": subject, "scope": scope}
    if launch_token is not None:
        claims["launch_token"] = launch_token
    return jwt.encode(claims, "k" * 64, algorithm="HS512")


def make_task_workload(task_id: str = "succeed", launch_token: str | None = None) -> ExecuteTask:
    """Return a workload for a task of ``guarded_dag.py``.

    :param launch_token: without it, the workload is a stock executor's.
    """
    from airflow.executors.workloads import BundleInfo, ExecuteTask, TaskInstance

    instance_id = uuid.uuid4()
    return ExecuteTask(
        ti=TaskInstance(
            id=instance_id,
            task_id=task_id,
            dag_id="guarded",
            run_id="run",
            try_number=1,
            dag_version_id=uuid.uuid4(),
            pool_slots=1,
            priority_weight=1,
            queue="default",
        ),
        dag_rel_path=DAG_FILE,
        bundle_info=BundleInfo(name=BUNDLE),
        token=unsigned_token(str(instance_id), launch_token),
        log_path=f"{instance_id}.log",
    )


def make_callback_workload(
    path: str, launch_token: str | None = None, kwargs: dict[str, Any] | None = None
) -> ExecuteCallback:
    """Return a workload for the callback at an import path.

    :param launch_token: without it, the workload is a stock executor's.
    """
    from airflow.executors.workloads import BundleInfo, ExecuteCallback

    callback_id = str(uuid.uuid4())
    return ExecuteCallback.model_validate(
        {
            "callback": {
                "id": callback_id,
                "fetch_method": "import_path",
                "data": {"path": path, "kwargs": kwargs or {}},
            },
            "dag_rel_path": DAG_FILE,
            "bundle_info": BundleInfo(name=BUNDLE),
            "token": unsigned_token(callback_id, launch_token, _callback_scope()),
            "log_path": f"executor_callbacks/{callback_id}",
        }
    )


def _callback_scope() -> str:
    from airflow.executors.workloads import ExecuteCallback

    from dispatcher.compat import token_scope

    return token_scope(ExecuteCallback)
