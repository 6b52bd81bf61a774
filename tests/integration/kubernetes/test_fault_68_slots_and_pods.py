# SPDX-License-Identifier: Apache-2.0
"""Fault 68: after adoption races, slots leak in one scheduler or are counted twice in another.

Right: what each scheduler runs are the pods that are its own and have not ended, and no count is negative.
"""

from __future__ import annotations

import pytest
from airflow.jobs.job import Job
from airflow.utils.session import create_session
from sqlalchemy import update

from tests.support import dispatching as run
from tests.support import field_dispatching as on

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


def test_fault_68_slots_are_those_of_the_pods_through_two_takeovers(field):
    a, b = (on.started_executor(field, parallelism=3) for _ in range(2))
    tokens = {name: on.launch_pod(a, task_id=name) for name in ("a1", "a2", "a3")}
    tokens |= {name: on.launch_pod(b, task_id=name) for name in ("b1", "b2")}
    for name in ("a1", "a2", "b1"):
        on.start_and_claim(field, tokens[name])
    assert (_slots(a), _slots(b)) == ((_names("a1 a2 a3"), 0), (_names("b1 b2"), 1))

    # A misses its heartbeats for a moment, and goes on all the same.
    on.declare_dead(a)
    on.orphan_check(b)
    b.drive(lambda: b.slots_occupied == 5, "B has all")
    _loop_on(a)
    assert (_slots(a), _slots(b)) == ((set(), 3), (_names("a1 a2 a3 b1 b2"), 0))

    # Pods end, under B and under the eyes of both.
    for name in ("a1", "b1"):
        run.set_task(tokens[name], state="success")
        field.kubelet.end(field.kubelet.name_of(tokens[name]), 0)
    b.drive(lambda: on.settled(tokens["a1"], tokens["b1"]), "two have settled")
    _loop_on(a)
    assert (_slots(a), _slots(b)) == ((set(), 3), (_names("a2 a3 b2"), 0))

    # A is heard of again, and takes over from B, its own old launches too.
    _revive(a)
    on.declare_dead(b)
    on.orphan_check(a)
    a.drive(lambda: a.slots_occupied == 3, "A has the rest")
    _loop_on(b)
    assert (_slots(a), _slots(b)) == ((_names("a2 a3 b2"), 0), (set(), 3))

    for name in ("a3", "b2"):
        on.start_and_claim(field, tokens[name])
    for name in ("a2", "a3", "b2"):
        run.set_task(tokens[name], state="success")
        field.kubelet.end(field.kubelet.name_of(tokens[name]), 0)
    a.drive(lambda: on.settled(*tokens.values()), "all have settled")
    a.drive(lambda: not field.kubelet.pods(), "no pod is left")
    _loop_on(b)
    assert (_slots(a), _slots(b)) == ((set(), 3), (set(), 3))
    assert a.told == b.told == []
    # Nothing of it is looked at in each loop for ever.
    for one in (a, b):
        one.drive(lambda one=one: not one.pods.observe(), "what is settled is told no more", seconds=20)


def _names(names: str) -> set[str]:
    return set(names.split())


def _slots(executor: on.FieldExecutor) -> tuple[set[str], int]:
    """Return the tasks that have a slot or wait for one, and how many more may come.

    One that was taken over beyond the limit waits for a slot, although its pod is there already.
    """
    mine = executor.running | executor.task_queue.keys()
    assert executor.slots_occupied == len(mine)
    return {key.task_id for key in run.named(mine).values()}, executor.slots_available


def _loop_on(executor: on.FieldExecutor) -> None:
    """Let a scheduler find out what became of its launches, and go on for a while."""
    executor.dispatcher.adopt_soon()
    for _ in range(3):
        executor.told += run.told(executor)


def _revive(executor: on.FieldExecutor) -> None:
    with create_session(scoped=False) as session:
        session.execute(update(Job).where(Job.id == executor.job_id).values(state="running"))
