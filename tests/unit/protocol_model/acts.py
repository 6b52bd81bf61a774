# SPDX-License-Identifier: Apache-2.0
"""What scenarios have in common: how one is played, and how most of them begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName
from tests.unit.protocol_model import oracle
from tests.unit.protocol_model.rest import come_to_rest
from tests.unit.protocol_model.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.protocol_model.execution import Execution
    from tests.unit.protocol_model.rows import TaskRow
    from tests.unit.protocol_model.rules import Rules
    from tests.unit.protocol_model.scheduler import Scheduler


def play(scenario: Callable[[World], None], rules: Rules) -> World:
    """Play a scenario, let the world come to rest, and check the invariants.

    :raises InvariantBroken: one does not hold
    """
    world = World(rules)
    scenario(world)
    oracle.check(world)
    come_to_rest(world)
    return world


def queued_task(world: World, backend: BackendName = BackendName.CELERY) -> tuple[Scheduler, TaskRow]:
    """Return a scheduler and a task that it has sent."""
    scheduler = world.add_scheduler()
    row = world.add_task(backend)
    world.schedule(row)
    scheduler.run("loop")
    return scheduler, row


def take(execution: Execution) -> None:
    """Let an execution ask, and write its claim if it may."""
    execution.ask()
    if execution.stage == "permitted":
        execution.take()


def running_task(
    world: World, backend: BackendName = BackendName.CELERY
) -> tuple[Scheduler, TaskRow, Execution]:
    """Return a scheduler, a task and the execution that runs it."""
    scheduler, row = queued_task(world, backend)
    execution = world.deliver() if backend is BackendName.CELERY else world.start_pod(row.token or "")
    take(execution)
    return scheduler, row, execution


def goes_on_after(world: World, scheduler: Scheduler, row: TaskRow, execution: Execution, state: str) -> None:
    """Let a task end its launch by its own word, and be queued and sent anew."""
    execution.report(state)
    execution.finish()
    world.fire_trigger(row)
    world.schedule(row)
    scheduler.run("loop")
