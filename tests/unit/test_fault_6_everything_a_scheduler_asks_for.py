# SPDX-License-Identifier: Apache-2.0
"""Known fault 6: a combined executor lacks members that the scheduler has begun to use."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from airflow.executors.base_executor import BaseExecutor
from airflow.jobs import scheduler_job_runner
from airflow.utils.log import file_task_handler

from dispatcher.executor import HybridExecutor

# Of some members of its base class Airflow 3.4 says that they are deprecated, to whoever looks at them.
pytestmark = pytest.mark.filterwarnings("ignore::airflow.exceptions.RemovedInAirflow4Warning")

EXECUTORS = frozenset({"executor", "_executor", "executor_obj"})
"""How Airflow's own code calls executors in a loop or a parameter."""

CALLERS = (scheduler_job_runner, file_task_handler)
PUBLIC = sorted(name for name in dir(BaseExecutor) if not name.startswith("_"))


def asked_for(module) -> set[str]:
    """Return the attributes that a module of Airflow reads of executors."""
    found = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner.removeprefix("self.") in EXECUTORS:
                found.add(node.attr)
    return found


@pytest.fixture(scope="module")
def unstarted():
    return HybridExecutor()


@pytest.mark.parametrize("name", PUBLIC)
def test_fault_6_a_member_of_the_base_class_is_there_and_is_called_alike(unstarted, name):
    assert hasattr(unstarted, name), "also before it is started, as in the API server"
    base, own = getattr(BaseExecutor, name), getattr(HybridExecutor, name)
    if inspect.isfunction(base) and own is not base:
        inspect.signature(own).bind(*_arguments(base)[0], **_arguments(base)[1])


def _arguments(function) -> tuple[list[object], dict[str, object]]:
    """Return arguments for everything that may be passed."""
    positional: list[object] = []
    named: dict[str, object] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[parameter.name] = None
        elif parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            positional.append(None)
    return positional, named


def test_fault_6_whatever_airflow_asks_of_an_executor_is_there(unstarted):
    asked = set().union(*(asked_for(module) for module in CALLERS))
    assert {"heartbeat", "slots_available", "job_id", "queue_workload"} <= asked
    assert {"get_event_buffer", "_drain_events_with_task_ids"} & asked
    assert sorted(name for name in asked if not hasattr(unstarted, name)) == []


def test_fault_6_nothing_that_must_be_implemented_is_left_out():
    left = {
        name
        for name, member in inspect.getmembers(BaseExecutor, inspect.isfunction)
        if "NotImplementedError" in member.__code__.co_names and getattr(HybridExecutor, name) is member
    }
    assert left == set()


def test_fault_6_slots_and_dumps_before_the_start(unstarted):
    assert unstarted.slots_occupied == 0
    assert unstarted.slots_available == unstarted.parallelism
    assert unstarted.job_id is None
    assert unstarted.get_event_buffer() == {}
    unstarted.debug_dump()
    unstarted.end()
    unstarted.terminate()
