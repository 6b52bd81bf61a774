# SPDX-License-Identifier: Apache-2.0
"""Everything that differs between Airflow versions. No other module compares versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow import __version__ as airflow_version
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from packaging.version import Version

from dispatcher.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import ColumnElement

    from dispatcher.domain.launch import Launch

AIRFLOW_VERSION = Version(Version(airflow_version).base_version)
AIRFLOW_3_4_PLUS = Version("3.4") <= AIRFLOW_VERSION


def task_key(launch: Launch) -> TaskInstanceKey:
    """Return the key by which the scheduler knows the task of a launch.

    :raises ValueError: the launch is not about a task
    """
    if launch.dag_id is None or launch.task_id is None or launch.run_id is None or launch.try_number is None:
        raise ValueError(f"launch {launch.token} is not about a task")
    return TaskInstanceKey(
        dag_id=launch.dag_id,
        task_id=launch.task_id,
        run_id=launch.run_id,
        try_number=launch.try_number,
        map_index=launch.map_index,
    )


def at_the_place_of(launches: Iterable[Launch]) -> ColumnElement[bool] | None:
    """Return the criterion for the task instances that now stand at the place of ``launches``.

    Clearing a running task changes its UUID and keeps its token, so the place (dag, run, task, map index)
    is what finds it (rule 13).

    :returns: None when ``launches`` holds no task
    """
    keys: list[Any] = [task_key(launch) for launch in launches]
    return TaskInstance.filter_for_tis(keys)


def coordinator_extra(queue: str) -> Mapping[str, Any] | None:
    """Return the ``extra`` that ``[sdk] coordinators`` declares for the coordinator of a queue, if any.

    :param queue: the queue of a task
    :raises ConfigurationError: ``[sdk] coordinators`` or ``queue_to_coordinator`` cannot be used
    """
    try:
        from airflow.sdk.execution_time.coordinator import get_coordinator_manager
    except ImportError:
        return None
    try:
        return get_coordinator_manager().extra_for_queue(queue)
    except Exception as exc:
        # Which error it is depends on which part of the JSON has the wrong shape.
        raise ConfigurationError(f"[sdk] coordinators or queue_to_coordinator: {exc}") from exc
