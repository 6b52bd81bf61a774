# SPDX-License-Identifier: Apache-2.0
"""Sequences of events, one for each hole that a rule closes. Each is named in ``test_scenarios.py``.

All of them end well under the protocol as it is. Under the mutant that opens the hole again, an invariant
breaks on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName
from tests.unit.protocol_model import oracle
from tests.unit.protocol_model.rest import come_to_rest, run_to_its_end
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


# Rule 4


def stalled_scheduler_wakes_up(world: World) -> None:
    """K8: a scheduler stalls between its check and its write, another adopts, the first wakes up."""
    stalled = world.add_scheduler()
    world.schedule(world.add_task())
    stalled.begin("loop")
    stalled.step()
    stalled.step()
    world.declare_dead(stalled)
    world.add_scheduler().run("adopt")
    stalled.finish()


def requeued_between_check_and_write(world: World) -> None:
    """K2: between the check of a batch and its write, a user clears the task."""
    scheduler = world.add_scheduler()
    row = world.add_task()
    world.schedule(row)
    scheduler.begin("loop")
    scheduler.step()
    scheduler.step()
    world.clear(row)
    scheduler.finish()


def retried_send_meets_the_claim(world: World) -> None:
    """B8: a send times out although it arrived, a worker claims, the retry of the send comes round."""
    scheduler = world.add_scheduler()
    world.schedule(world.add_task())
    scheduler.send_answer_lost = True
    scheduler.run("loop")
    execution = world.deliver()
    take(execution)
    scheduler.run("loop")
    scheduler.run("loop")
    run_to_its_end(execution)


def queueing_is_rolled_back(world: World) -> None:
    """The transaction that queued a task fails after the executor took the workload."""
    scheduler = world.add_scheduler()
    world.schedule(world.add_task())
    scheduler.database_fails = True
    scheduler.run("loop")


# Rules 7 and 8


def delivered_twice(world: World) -> None:
    """C1, C2: the broker delivers a message twice to one worker."""
    _, row, first = running_task(world)
    world.broker.ready.append(row.token or "")
    second = world.deliver()
    take(second)
    run_to_its_end(first)


def delivered_twice_at_once(world: World) -> None:
    """Two deliveries are judged before either has written its claim."""
    _, row = queued_task(world)
    world.broker.ready.append(row.token or "")
    first, second = world.deliver(), world.deliver()
    first.ask()
    second.ask()
    first.take()
    second.take()


def cleared_between_judgement_and_claim(world: World) -> None:
    """Without row locks, a user clears the task between the judgement of a claim and its write."""
    _, row = queued_task(world)
    execution = world.deliver()
    execution.ask()
    world.clear(row)
    execution.take()


def claims_a_restarting_task(world: World) -> None:
    """B2: a task is cleared while it runs, and its message is delivered once more."""
    _, row, first = running_task(world)
    world.clear(row, keeps_id=True)
    world.broker.ready.append(row.token or "")
    take(world.deliver())
    run_to_its_end(first)


def old_message_of_an_unrecorded_run(world: World) -> None:
    """C3, B4: the first launch ran past the fence, the task is queued anew, the old message comes."""
    scheduler, row = queued_task(world)
    old = row.token or ""
    first = world.deliver()
    first.ask_without_fence()
    row.state = "scheduled"
    first.vanish()
    scheduler.begin("loop")
    scheduler.step()
    take(world.deliver())
    assert old != row.token


def old_message_after_deferral(world: World) -> None:
    """C3: a task defers and is queued again; the message of its first launch is delivered first."""
    scheduler, row, first = running_task(world)
    old = row.token or ""
    goes_on_after(world, scheduler, row, first, "deferred")
    world.broker.ready.insert(0, old)
    take(world.deliver())


def answer_to_the_claim_is_lost(world: World) -> None:
    """B1: the answer to ``/run`` is lost, and the worker asks again."""
    queued_task(world)
    execution = world.deliver()
    execution.ask()
    execution.take(answer_lost=True)
    execution.ask()


def old_launch_reports(world: World) -> None:
    """B3: a worker of an old launch speaks while a newer one of the same task instance is running."""
    scheduler, row, old = running_task(world)
    row.state = "deferred"
    world.fire_trigger(row)
    scheduler.run("loop")
    take(world.deliver())
    old.report("success")


# Rule 13


def late_success_of_a_rescheduled_sensor(world: World) -> None:
    """B10: the end of a rescheduled sensor's launch is seen when the task is SCHEDULED again."""
    scheduler, row, execution = running_task(world)
    execution.report("up_for_reschedule")
    world.schedule(row)
    execution.finish()
    scheduler.begin("loop")
    scheduler.step()
    row.queued_by = scheduler.job_id
    scheduler.finish()


def late_end_of_an_old_launch(world: World) -> None:
    """The artefact of a deferred task's first launch ends when its second one is queued by the same try."""
    scheduler, row, first = running_task(world)
    first.report("deferred")
    world.fire_trigger(row)
    scheduler.run("loop")
    first.die()
    scheduler.run("loop")
    scheduler.run("loop")


def second_delivery_dies(world: World) -> None:
    """K5, C2: a second delivery is killed while the first one runs healthily."""
    scheduler, row, first = running_task(world)
    world.broker.ready.append(row.token or "")
    world.deliver().die()
    scheduler.run("loop")
    scheduler.run("loop")
    first.heartbeat()
    run_to_its_end(first)


def loser_in_a_pod_ends_with_zero(world: World) -> None:
    """K5: the second start of a pod loses the claim and exits with 0 while the first one runs."""
    scheduler, row, first = running_task(world, BackendName.KUBERNETES)
    second = world.start_pod(row.token or "")
    take(second)
    second.finish()
    scheduler.run("loop")
    scheduler.run("loop")
    run_to_its_end(first)


def user_marks_a_pending_task(world: World) -> None:
    """K9: a user marks a task while its pod is pending; the pod is evicted."""
    scheduler, row = queued_task(world, BackendName.KUBERNETES)
    world.mark(row, "success")
    world.evict_pod(row.token or "")
    scheduler.run("loop")
    scheduler.run("loop")


def moved_to_another_executor(world: World) -> None:
    """The executor of a task is changed while its launch is in a backend."""
    scheduler, row = queued_task(world, BackendName.KUBERNETES)
    row.ours = False
    world.evict_pod(row.token or "")
    scheduler.run("loop")
    scheduler.run("loop")
    row.ours = True
    row.state = None


# Rule 19


def two_schedulers_queue_one_callback(world: World) -> None:
    """A7: two schedulers read the same pending callback; one launch runs before the other is sent."""
    first, second = world.add_scheduler(), world.add_scheduler()
    world.add_callback()
    for scheduler in (first, second):
        scheduler.begin("callbacks")
        scheduler.step()
    first.finish()
    second.finish()
    first.run("loop")
    execution = world.deliver()
    take(execution)
    second.run("loop")
    second.run("loop")
    run_to_its_end(execution)
