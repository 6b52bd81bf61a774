# SPDX-License-Identifier: Apache-2.0
"""Everything that differs between Airflow versions on the scheduler's side and in the API server.

No other module there compares versions; ``workers.compat`` is the same for workers, whose processes must
not import what this module does. ``docs/airflow-versions.md`` tells the differences in a table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from airflow import __version__ as airflow_version
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from packaging.version import Version
from sqlalchemy import Uuid, and_, func, literal, true
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from dispatcher.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import ColumnElement, Row
    from sqlalchemy.sql.compiler import SQLCompiler

    from dispatcher.domain.launch import Launch

AIRFLOW_VERSION = Version(Version(airflow_version).base_version)
AIRFLOW_3_4_PLUS = Version("3.4") <= AIRFLOW_VERSION

# Of 3.4 alone, and found there by name: type checks run on the older version, which does not know it.
_task_instance: Any = TaskInstance
_workload_base: Any = import_module("airflow.executors.workloads.base")
_workload_types: Any = import_module("airflow.executors.workloads.types")

_NO_REGION = UUID(int=0)
"""What Airflow 3.4 writes as the region of a task that is in none; the ledger has null there."""


class VersionedExecutor(BaseExecutor):
    """Airflow's base class, with what an executor has to say of itself and its queues in each version."""

    if AIRFLOW_3_4_PLUS:
        supported_workload_types = frozenset(_workload_base.WorkloadType)
        supports_task_instance_uuid = True
    else:
        supports_callbacks: bool = True
        supports_connection_test: bool = True

    @property
    def task_queue(self) -> dict[Any, Any]:
        """Tasks that wait to be sent, by Airflow's key."""
        return tasks_waiting_in(self)

    @property
    def callback_queue(self) -> dict[Any, Any]:
        """Callbacks that wait to be sent, by Airflow's key."""
        return _queue_of(self, "EXECUTE_CALLBACK", "queued_callbacks")

    @property
    def connection_test_queue(self) -> dict[Any, Any]:
        """Connection tests that wait to be sent, by Airflow's key."""
        return _queue_of(self, "TEST_CONNECTION", "queued_connection_tests")


def tasks_waiting_in(executor: BaseExecutor) -> dict[Any, Any]:
    """Return the tasks that wait in an executor to be sent, by Airflow's key.

    :param executor: any, not only ours: the stock ones call a queue of their own ``task_queue``
    """
    return _queue_of(executor, "EXECUTE_TASK", "queued_tasks")


def _queue_of(executor: Any, workload_type: str, before: str) -> dict[Any, Any]:
    if not AIRFLOW_3_4_PLUS:
        return getattr(executor, before)  # type: ignore[no-any-return]
    return executor.executor_queues[_workload_base.WorkloadType[workload_type]]  # type: ignore[no-any-return]


def task_key(launch: Launch) -> Any:
    """Return the key by which the scheduler knows the task of a launch.

    That is its place and try on 3.3, and the UUID of the try on 3.4.

    :raises ValueError: the launch is not about a task
    """
    if launch.dag_id is None or launch.task_id is None or launch.run_id is None or launch.try_number is None:
        raise ValueError(f"launch {launch.token} is not about a task")
    if AIRFLOW_3_4_PLUS:
        return _workload_types.TaskInstanceUuid(UUID(launch.subject_id))
    return TaskInstanceKey(
        dag_id=launch.dag_id,
        task_id=launch.task_id,
        run_id=launch.run_id,
        try_number=launch.try_number,
        map_index=launch.map_index,
    )


def workload_key(workload: Any) -> Any:
    """Return the key by which the scheduler knows what a workload is about.

    :param workload: a task, a callback or a connection test
    """
    if isinstance(workload, ExecuteTask):
        return task_instance_key(workload.ti)
    return workload.key


def task_instance_key(ti: Any) -> Any:
    """Return the key by which the scheduler knows a task instance; see ``task_key``.

    :param ti: Airflow's row, or what a workload tells of it
    """
    return _workload_types.TaskInstanceUuid(ti.id) if AIRFLOW_3_4_PLUS else ti.key


class Place(NamedTuple):
    """Where a task stands in its run: the same for all its tries, whatever their UUIDs.

    :param map_index: index in its expansion or, on 3.4, in its region
    :param region_id: UUID of the dynamic region that the index is of; None for none, and before 3.4
    """

    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int
    region_id: str | None


PLACE_COLUMNS: tuple[Any, ...] = (
    TaskInstance.dag_id,
    TaskInstance.run_id,
    TaskInstance.task_id,
    _task_instance.region_index.label("map_index") if AIRFLOW_3_4_PLUS else TaskInstance.map_index,
    *((_task_instance.region_id,) if AIRFLOW_3_4_PLUS else ()),
)
"""What ``place_of_row`` reads."""


def place_of(launch: Launch) -> Place:
    """Return where the task of a launch stands."""
    return Place(launch.dag_id, launch.run_id, launch.task_id, launch.map_index, launch.region_id)


def place_of_row(row: Row[Any]) -> Place:
    """Return where a task instance stands.

    :param row: has ``PLACE_COLUMNS``
    """
    region = row.region_id if AIRFLOW_3_4_PLUS else None
    return Place(row.dag_id, row.run_id, row.task_id, row.map_index, _named_region(region))


def region_of(ti: Any) -> str | None:
    """Return the dynamic region of a task instance, if it is in one.

    :param ti: Airflow's row, or what a workload tells of it
    """
    return _named_region(getattr(ti, "region_id", None))


def _named_region(region_id: UUID | None) -> str | None:
    return None if region_id is None or region_id == _NO_REGION else str(region_id)


def of_the_present() -> ColumnElement[bool]:
    """Return the criterion that leaves out the rows of earlier tries, which 3.4 keeps in the same table.

    Airflow adds it to the statements of its sessions, and we read by connections. A row that was archived
    while it was queued stays QUEUED under its token.
    """
    return _task_instance.working_set.is_(True) if AIRFLOW_3_4_PLUS else true()


class _UuidOfText(FunctionElement[UUID]):
    """A UUID that a column holds as text, to be compared with one that Airflow keeps as its database can."""

    type = Uuid()
    inherit_cache = True


@compiles(_UuidOfText)
def _as_hex_digits(element: _UuidOfText, compiler: SQLCompiler, **kwargs: Any) -> str:
    return f"REPLACE({compiler.process(element.clauses, **kwargs)}, '-', '')"


@compiles(_UuidOfText, "postgresql")
def _as_uuid(element: _UuidOfText, compiler: SQLCompiler, **kwargs: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kwargs)} AS UUID)"


def at_the_place_in(row: Any) -> ColumnElement[bool]:
    """Return the criterion for the task instance that now stands at the place of a row of the ledger.

    All of it is in an index of Airflow's. That of 3.4 has the region in its middle: without it, every lookup
    would go through all tasks that one was expanded to.

    :param row: the columns ``dag_id``, ``run_id``, ``task_id``, ``map_index`` and ``region_id``
    """
    place = and_(
        TaskInstance.dag_id == row.dag_id,
        TaskInstance.run_id == row.run_id,
        TaskInstance.task_id == row.task_id,
        TaskInstance.map_index == row.map_index,
    )
    if not AIRFLOW_3_4_PLUS:
        return place
    region = func.coalesce(_UuidOfText(row.region_id), literal(_NO_REGION, Uuid()))
    return and_(place, _task_instance.region_id == region, of_the_present())


def at_the_place_of(launches: Iterable[Launch]) -> ColumnElement[bool] | None:
    """Return the criterion for the task instances that now stand at the place of ``launches``.

    Clearing a running task changes its UUID and keeps its token on 3.3, so the place is what finds it
    (rule 13).

    :returns: None when ``launches`` holds no task
    """
    if not AIRFLOW_3_4_PLUS:
        keys: list[Any] = [task_key(launch) for launch in launches]
        return TaskInstance.filter_for_tis(keys)
    # Airflow takes the region from anything that has one and is no key of its own.
    places: list[Any] = [
        place_of(launch)._replace(region_id=UUID(launch.region_id) if launch.region_id else _NO_REGION)  # type: ignore[arg-type]
        for launch in launches
    ]
    criterion = TaskInstance.filter_for_tis(places)
    return None if criterion is None else criterion & of_the_present()


def token_scope(workload: Any) -> str:
    """Return the scope of the JWT with which a workload may start: 3.4 has one of their own for callbacks."""
    return getattr(workload, "token_scope", "workload")


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
