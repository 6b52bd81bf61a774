# SPDX-License-Identifier: Apache-2.0
"""Sequences of events about tasks, one for each hole that a rule closes.

All of them end well under the protocol as it is. Under the mutant that opens the hole again, an invariant
breaks on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName
from tests.unit.protocol_model.acts import goes_on_after, queued_task, running_task, take
from tests.unit.protocol_model.rest import run_to_its_end

if TYPE_CHECKING:
    from tests.unit.protocol_model.world import World

# Rules 2 and 3


def token_is_not_fresh(world: World) -> None:
    """In a mixed executor list a task brings the token of its earlier launch, or none."""
    scheduler = world.add_scheduler()
    row = world.add_task(fresh_ids=False)
    world.schedule(row)
    scheduler.run("loop")
    execution = world.deliver()
    take(execution)
    goes_on_after(world, scheduler, row, execution, "deferred")


def task_brings_no_token(world: World) -> None:
    """In a mixed executor list a task is queued for the first time, without a token."""
    scheduler = world.add_scheduler()
    world.schedule(world.add_task(fresh_ids=False))
    scheduler.run("loop")
    scheduler.run("loop")


def cleared_while_queued(world: World) -> None:
    """A user clears a task whose message waits; the newer launch is sent beside the older one."""
    scheduler, row = queued_task(world)
    world.clear(row)
    world.schedule(row)
    scheduler.run("loop")


def old_launch_reports_again(world: World) -> None:
    """B3: a worker repeats a report whose answer it never heard; a newer launch of the same task runs."""
    scheduler, row, old = running_task(world)
    old.report("deferred")
    scheduler.run("loop")
    for _ in range(2):
        world.pass_time(60)
        scheduler.run("loop")
    world.fire_trigger(row)
    scheduler.run("loop")
    take(world.deliver())
    old.report_again("deferred")
    assert row.state == "running"


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


# Rule 6


def claimed_before_the_relaunch(world: World) -> None:
    """K6: a launch is claimed after the decision to replace it, and before the transaction that does."""
    scheduler, _ = queued_task(world)
    scheduler.begin("relaunch")
    scheduler.step()
    take(world.deliver())
    scheduler.finish()


def marked_before_the_relaunch(world: World) -> None:
    """K9: a user marks a pending task, which keeps its token, before its launch is replaced."""
    scheduler, row = queued_task(world, BackendName.KUBERNETES)
    scheduler.begin("relaunch")
    scheduler.step()
    world.mark(row, "failed")
    scheduler.finish()


def queued_anew_before_the_relaunch(world: World) -> None:
    """K6: the task is cleared and queued by another scheduler before its launch is replaced."""
    scheduler, row = queued_task(world, BackendName.KUBERNETES)
    other = world.add_scheduler()
    scheduler.begin("relaunch")
    scheduler.step()
    world.clear(row, keeps_id=True)
    world.schedule(row)
    other.begin("loop")
    other.step()
    scheduler.finish()
    other.finish()


def lost_again_and_again(world: World) -> None:
    """K6: each pod of a task is lost before its claim, until no more are made."""
    scheduler, _ = queued_task(world, BackendName.KUBERNETES)
    for _ in range(4):
        scheduler.run("relaunch")
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


def stock_worker_gets_a_duplicate(world: World) -> None:
    """C2, B4: a message is delivered twice to workers without the guard."""
    _, row = queued_task(world)
    world.broker.ready.append(row.token or "")
    first, second = world.deliver(stock=True), world.deliver(stock=True)
    take(first)
    take(second)
    second.finish()


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
    world.fail_pod(row.token or "", "Evicted")
    scheduler.run("loop")
    scheduler.run("loop")


def moved_to_another_executor(world: World) -> None:
    """The executor of a task is changed while its launch is in a backend."""
    scheduler, row = queued_task(world, BackendName.KUBERNETES)
    row.ours = False
    world.fail_pod(row.token or "", "Evicted")
    scheduler.run("loop")
    scheduler.run("loop")
    row.ours = True
    row.state = None


# Rule 14


def event_is_skipped(world: World) -> None:
    """Somebody has locked the task when the scheduler processes the event of its evicted pod."""
    scheduler, row = queued_task(world, BackendName.KUBERNETES)
    world.fail_pod(row.token or "", "Evicted")
    scheduler.locked_for_it.add(row.place)
    scheduler.run("loop")
    scheduler.run("loop")


def scheduler_dies_between_end_and_report(world: World) -> None:
    """K11: a pod's end is in the ledger, and the scheduler dies before Airflow has heard of it."""
    scheduler, row = queued_task(world, BackendName.KUBERNETES)
    world.fail_pod(row.token or "", "Evicted")
    scheduler.begin("loop")
    while world.ledger.rows[row.token or ""].open:
        scheduler.step()
    scheduler.step()
    world.kill_scheduler(scheduler)


# Rule 17


def claimed_while_stuck_handling_goes_on(world: World) -> None:
    """B7: a task is found stuck by an unlocked read, a worker claims it, the handling goes on."""
    scheduler, row = queued_task(world)
    world.pass_time(700)
    scheduler.begin("stuck")
    scheduler.step()
    take(world.deliver())
    scheduler.finish()
    assert row.state == "running"


# Rule 18


def scheduler_dies_while_a_task_runs(world: World) -> None:
    """K11, C5: a running task of a dead scheduler is adopted."""
    scheduler, _, execution = running_task(world)
    world.kill_scheduler(scheduler)
    other = world.add_scheduler()
    other.run("adopt")
    other.run("loop")
    run_to_its_end(execution)


def scheduler_dies_before_the_send(world: World) -> None:
    """C4: a scheduler dies after QUEUED was committed and before the send."""
    scheduler = world.add_scheduler()
    world.schedule(world.add_task())
    scheduler.begin("loop")
    scheduler.step()
    world.kill_scheduler(scheduler)


def other_scheduler_looks_for_orphans(world: World) -> None:
    """A scheduler looks for orphans while another one works."""
    queued_task(world)
    world.add_scheduler().run("adopt")


# Rule 20


def pruned_while_deferred(world: World) -> None:
    """In a mixed executor list a task that deferred for long brings its old token again."""
    scheduler = world.add_scheduler()
    row = world.add_task(fresh_ids=False)
    world.schedule(row)
    scheduler.run("loop")
    execution = world.deliver()
    take(execution)
    execution.report("deferred")
    execution.finish()
    for _ in range(3):
        world.pass_time(60)
        scheduler.run("loop")
    assert world.ledger.rows[row.token or ""].settled_at is not None
    world.pass_time(60)
    world.prune()
    world.fire_trigger(row)
    scheduler.run("loop")
    take(world.deliver())
