# SPDX-License-Identifier: Apache-2.0
"""What differs between Airflow versions, and that nothing else asks which one it is."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import jwt
import pytest
from airflow.exceptions import RemovedInAirflow4Warning
from airflow.executors.base_executor import BaseExecutor
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from sqlalchemy import select
from sqlalchemy.dialects import sqlite

import dispatcher
import workers
from dispatcher import compat
from tests.support.launches import build_launch
from workers.compat import SUPERVISOR_STARTS_CALLBACKS, callback_options, is_outdated, supervisor_token

REGION = "01890a5d-ac96-774b-bcce-b302099a8057"
only_3_4 = pytest.mark.skipif(not compat.AIRFLOW_3_4_PLUS, reason="Airflow 3.3 does not have it")
only_3_3 = pytest.mark.skipif(compat.AIRFLOW_3_4_PLUS, reason="Airflow 3.4 does not have it")


def sql(criterion):
    statement = select(TaskInstance.id).where(criterion)
    return str(statement.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))


def callback(**data):
    return SimpleNamespace(callback=SimpleNamespace(data={"path": "a.b", "kwargs": {}, **data}))


def test_nothing_else_compares_versions():
    asks = re.compile(r"AIRFLOW_3_4_PLUS|AIRFLOW_VERSION|\bVersion\(")
    found = [
        path.name
        for package in (dispatcher, workers)
        for path in Path(package.__path__[0]).rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8"))
    ]

    assert found == ["compat.py"]


def test_the_executor_says_what_it_runs_in_no_deprecated_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Executor(compat.VersionedExecutor):
            pass

    if compat.AIRFLOW_3_4_PLUS:
        assert {kind.value for kind in Executor.supported_workload_types} == {
            "ExecuteTask",
            "ExecuteCallback",
            "TestConnection",
        }
        assert Executor.supports_task_instance_uuid
    else:
        assert (Executor.supports_callbacks, Executor.supports_connection_test) == (True, True)


def test_the_queues_are_airflows_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor = compat.VersionedExecutor()
        executor.task_queue["task"] = executor.callback_queue["callback"] = 1
        executor.connection_test_queue["test"] = 1

        assert executor.slots_occupied == 3 if compat.AIRFLOW_3_4_PLUS else executor.slots_occupied >= 2
        assert compat.tasks_waiting_in(executor) == {"task": 1}


def test_the_tasks_that_wait_in_any_executor_are_found():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        waiting = compat.tasks_waiting_in(BaseExecutor())

        assert waiting == {}


@only_3_4
def test_a_word_that_airflow_calls_deprecated_is_an_error_in_tests():
    class Executor(BaseExecutor):
        """Of its own, as each class is warned of a word once."""

    executor = Executor()
    with pytest.raises(RemovedInAirflow4Warning, match="executor_queues"):
        _ = executor.queued_tasks


@only_3_3
def test_the_key_of_a_task_is_its_place_and_try():
    launch = build_launch(map_index=3, try_number=2)

    assert compat.task_key(launch) == TaskInstanceKey("dag", "task", launch.run_id, 2, 3)


@only_3_4
def test_the_key_of_a_task_is_the_uuid_of_its_try():
    launch = build_launch(map_index=3, try_number=2)

    key = compat.task_key(launch)

    assert key.id == UUID(launch.subject_id)
    assert key == compat.task_instance_key(SimpleNamespace(id=key.id))


def test_a_launch_of_a_callback_has_no_task_key():
    with pytest.raises(ValueError, match="not about a task"):
        compat.task_key(build_launch(task_id=None))


@only_3_4
def test_the_same_place_in_another_region_is_another_place():
    plain, looped = build_launch(), build_launch(region_id=REGION)
    row = SimpleNamespace(
        dag_id="dag", run_id=plain.run_id, task_id="task", map_index=-1, region_id=UUID(REGION)
    )

    assert compat.place_of_row(row) == compat.place_of(looped) != compat.place_of(plain)
    row.region_id = UUID(int=0)
    assert compat.place_of_row(row) == compat.place_of(plain)


@only_3_4
def test_only_rows_of_the_present_are_looked_for():
    assert "working_set IS" in sql(compat.of_the_present())
    assert "working_set IS" in sql(compat.at_the_place_of([build_launch()]))
    assert UUID(REGION).hex in sql(compat.at_the_place_of([build_launch(region_id=REGION)]))


@only_3_3
def test_every_row_is_of_the_present():
    assert sql(compat.of_the_present()).endswith("WHERE 1 = 1")


def test_a_workload_starts_with_the_scope_that_it_has():
    assert compat.token_scope(object()) == "workload"
    assert compat.token_scope(SimpleNamespace(token_scope="callback")) == "callback"


def test_the_encoding_of_arguments_is_passed_on_where_there_is_one():
    assert callback_options(callback()) == {}
    assert callback_options(callback(kwargs_encoding="serde")) == {"callback_kwargs_encoding": "serde"}


@pytest.mark.parametrize(("scope", "outdated"), [("workload", compat.AIRFLOW_3_4_PLUS), ("callback", False)])
def test_a_callback_that_an_older_airflow_signed(scope, outdated):
    token = jwt.encode({"sub": "callback", "scope": scope}, "a key of thirty-two bytes, at least")

    assert is_outdated(token) is outdated


def test_the_supervisor_begins_with_what_its_version_asks_for():
    assert SUPERVISOR_STARTS_CALLBACKS is compat.AIRFLOW_3_4_PLUS
    assert supervisor_token("sent", "answered") == ("sent" if compat.AIRFLOW_3_4_PLUS else "answered")
