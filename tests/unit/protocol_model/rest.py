# SPDX-License-Identifier: Apache-2.0
"""Let the world come to rest: no more faults, one scheduler that lives and workers that do their work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.protocol_model import oracle
from tests.unit.protocol_model.execution import Stage

if TYPE_CHECKING:
    from tests.unit.protocol_model.execution import Execution
    from tests.unit.protocol_model.world import World

ROUNDS = 30
CLAIM_ATTEMPTS = 3
SECONDS_PER_ROUND = 400
"""More than a heartbeat time-out, less than the time after which a queued task is stuck."""


def come_to_rest(world: World) -> None:
    """Run until nothing is left to do, and check what must hold then.

    :raises InvariantBroken: something never ends, or it ended wrongly
    """
    _end_faults(world)
    for _ in range(ROUNDS):
        if _is_at_rest(world):
            break
        _round(world)
        oracle.check(world)
    oracle.at_rest(world)


def _end_faults(world: World) -> None:
    for scheduler in world.schedulers:
        if scheduler.job_id in world.failed_jobs:
            scheduler.alive = False
        scheduler.database_fails = scheduler.send_lost = scheduler.send_answer_lost = False
        scheduler.locked_for_it.clear()
    if not world.live_schedulers():
        world.add_scheduler()


def _round(world: World) -> None:
    for row in world.tasks.values():
        world.fire_trigger(row)
        world.schedule(row)
    for scheduler in world.live_schedulers():
        scheduler.finish()
        for operation in ("adopt", "purge", "stuck", "loop"):
            scheduler.run(operation)
    run_workers(world)
    world.pass_time(SECONDS_PER_ROUND)


def run_workers(world: World) -> None:
    """Let workers take everything that waits, and run it to its end."""
    while world.broker.ready:
        world.deliver()
    for token, pod in list(world.cluster.pods.items()):
        if pod.ending is None and pod.starts == 0:
            world.start_pod(token)
    for execution in world.executions:
        run_to_its_end(execution)


def run_to_its_end(execution: Execution) -> None:
    """Let one execution do all that is left of it, successfully."""
    for _ in range(CLAIM_ATTEMPTS):
        if execution.stage is Stage.ASKING:
            execution.ask()
        if execution.stage is Stage.PERMITTED:
            execution.take()
    if execution.stage is Stage.RUNNING:
        execution.report("success")
    if execution.stage is not Stage.OVER:
        execution.finish()


def _is_at_rest(world: World) -> bool:
    rows = [*world.tasks.values(), *world.callbacks.values()]
    deleted = [row for row in world.callbacks.values() if row.deleted]
    launches = world.ledger.rows.values()
    return (
        all(row.state in oracle.FINISHED or row in deleted for row in rows)
        and all(launch.settled_at is not None for launch in launches)
        and not any(one.running or one.queued for one in world.live_schedulers())
        and not world.broker.ready
    )
