# SPDX-License-Identifier: Apache-2.0
"""Sequences of events about callbacks: two schedulers may queue the same one (rule 19).

All of them end well under the protocol as it is. Under the mutant that opens the hole again, an invariant
breaks on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName
from tests.unit.protocol_model.acts import take
from tests.unit.protocol_model.rest import run_to_its_end

if TYPE_CHECKING:
    from tests.unit.protocol_model.execution import Execution
    from tests.unit.protocol_model.scheduler import Scheduler
    from tests.unit.protocol_model.world import World


def two_launches_of_a_callback(world: World) -> tuple[Scheduler, Scheduler]:
    """Return two schedulers that have queued the same callback, each with a launch of its own (A7)."""
    first, second = world.add_scheduler(), world.add_scheduler()
    world.add_callback()
    for scheduler in (first, second):
        scheduler.begin("callbacks")
        scheduler.step()
    first.finish()
    second.finish()
    return first, second


def dropped_launch_of_a_callback(world: World) -> None:
    """A7: the launch of one scheduler runs; the other scheduler drops its own, and reports meanwhile."""
    first, second = two_launches_of_a_callback(world)
    first.run("loop")
    execution = world.deliver()
    take(execution)
    second.run("loop")
    second.run("loop")
    run_to_its_end(execution)


def callback_is_queued_anew_after_it_ran(world: World) -> None:
    """A7: a scheduler that has read a callback as pending writes QUEUED when it has succeeded already."""
    first, second = world.add_scheduler(), world.add_scheduler()
    world.add_callback()
    second.begin("callbacks")
    second.step()
    first.run("callbacks")
    first.run("loop")
    run_to_its_end(world.deliver())
    first.run("loop")
    first.run("loop")
    second.finish()


def both_launches_of_a_callback_ask(world: World) -> None:
    """A7: both launches of a callback are sent, and judged before either has written its claim."""
    for scheduler in two_launches_of_a_callback(world):
        scheduler.run("loop")
    one, other = world.deliver(), world.deliver()
    one.ask()
    other.ask()
    one.take()
    other.take()


def callback_is_delivered_after_the_other_launch(world: World) -> None:
    """A7, A8: both launches of a callback are sent, and delivered one after the other."""
    for scheduler in two_launches_of_a_callback(world):
        scheduler.run("loop")
    take(world.deliver())
    take(world.deliver())


def older_launch_is_claimed_first(world: World) -> None:
    """A7: between the check of a callback's newer launch and its write, the older one is claimed."""
    first, second = two_launches_of_a_callback(world)
    first.run("loop")
    second.begin("loop")
    second.step()
    second.step()
    take(world.deliver())
    second.finish()


def lost_callback_is_launched_again(world: World) -> None:
    """A9: the pod of a callback is lost before its claim; the next one is claimed, and lost as well."""
    scheduler = world.add_scheduler()
    row = world.add_callback(BackendName.KUBERNETES)
    scheduler.run("callbacks")
    scheduler.run("loop")
    scheduler.run("relaunch")
    scheduler.run("loop")
    newest = [one.token for one in world.ledger.of_callback(row.id)][-1]
    take(world.start_pod(newest))
    world.fail_pod(newest, "Evicted")
    scheduler.run("relaunch")
    scheduler.run("loop")


def lost_after_the_other_launch_was_claimed(world: World) -> None:
    """A9: two schedulers have launched one callback; one launch is claimed, the pod of the other is lost."""
    first, second = two_launches_of_a_callback(world)
    first.run("loop")
    second.run("loop")
    take(world.deliver())
    second.run("relaunch")


def running_callback(world: World) -> tuple[Scheduler, Execution]:
    """Return a scheduler and the execution that runs its callback on Celery."""
    scheduler = world.add_scheduler()
    world.add_callback()
    scheduler.run("callbacks")
    scheduler.run("loop")
    execution = world.deliver()
    take(execution)
    return scheduler, execution


def message_of_a_callback_is_lost(world: World) -> None:
    """A5: the broker lost the message, and no worker ever asks."""
    scheduler = world.add_scheduler()
    world.add_callback()
    scheduler.run("callbacks")
    scheduler.run("loop")
    world.broker.ready.clear()


def claimed_as_its_time_is_up(world: World) -> None:
    """A5: the scheduler reads a callback that has waited too long; it is claimed before the write."""
    scheduler = world.add_scheduler()
    world.add_callback()
    scheduler.run("callbacks")
    scheduler.run("loop")
    world.pass_time(int(world.callback_patience.total_seconds()) + 1)
    scheduler.begin("loop")
    scheduler.step()
    scheduler.step()
    take(world.deliver())
    scheduler.finish()


def worker_vanishes_with_its_callback(world: World) -> None:
    """A5: the worker goes away with the callback that it runs, and so does the scheduler."""
    scheduler, execution = running_callback(world)
    execution.vanish()
    world.kill_scheduler(scheduler)


def callback_runs_for_long(world: World) -> None:
    """A callback runs on while its scheduler looks who runs it, again and again."""
    scheduler, execution = running_callback(world)
    for _ in range(3):
        world.pass_time(700)
        scheduler.run("loop")
    run_to_its_end(execution)


def callback_is_deleted_while_it_waits(world: World) -> None:
    """A15: the DAG run of a callback is deleted before a worker asks."""
    scheduler = world.add_scheduler()
    row = world.add_callback()
    scheduler.run("callbacks")
    world.delete_callback(row)
    scheduler.run("loop")


def callback_is_deleted_while_it_runs(world: World) -> None:
    """A15: the DAG run of a callback is deleted while it runs."""
    scheduler, execution = running_callback(world)
    world.delete_callback(world.callbacks[execution.subject_id])
    scheduler.run("loop")
    world.pass_time(60)
    scheduler.run("loop")
