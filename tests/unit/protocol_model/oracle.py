# SPDX-License-Identifier: Apache-2.0
"""What must hold whatever happens: the invariants of the protocol, written independently of its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import LaunchKind

if TYPE_CHECKING:
    from dispatcher.domain.launch import Launch
    from tests.unit.protocol_model.memory import Emission
    from tests.unit.protocol_model.rows import TaskRow
    from tests.unit.protocol_model.world import World

# Deliberately a second copy of the transitions table: the one in the domain is what is tested.
NEXT_STATES = {
    "issued": {"submitted", "claimed", "superseded", "revoked", "dropped", "lost"},
    "submitted": {"submitted", "claimed", "failed", "superseded", "revoked", "dropped", "lost"},
    "claimed": {"succeeded", "failed", "revoked", "lost", "superseded"},
}
OPEN = frozenset(NEXT_STATES)
FINISHED = frozenset({"success", "failed"})
MOST_RELAUNCHES = 2
WAITS_FOR_A_LAUNCH = frozenset({"queued", "running", "restarting"})


class InvariantBroken(AssertionError):  # noqa: N818 - it names what happened, as pytest shows it
    """An invariant of the protocol does not hold."""


def require(condition: bool, message: str) -> None:
    """Raise ``InvariantBroken`` unless ``condition`` holds."""
    if not condition:
        raise InvariantBroken(message)


# What is checked when it happens


def transition(before: Launch, after: Launch) -> None:
    """A launch moves only along the table, and a claimed callback launch is never superseded."""
    require(
        after.state.value in NEXT_STATES.get(before.state.value, ()),
        f"{before.token} went from {before.state.value} to {after.state.value}",
    )
    if before.kind is LaunchKind.CALLBACK and before.state.value == "claimed":
        require(after.state.value != "superseded", f"{before.token}: a claimed callback was superseded")


def issued(world: World, token: str) -> None:
    """A token names one launch."""
    require(token not in world.ledger.rows, f"{token} names two launches")


def submitted(launch: Launch, row: TaskRow | None, owner: str) -> None:
    """A scheduler clears for sending only what is its own and what its task still waits for."""
    require(launch.scheduler_job_id == owner, f"{owner} submits {launch.token} of another scheduler")
    if launch.kind is LaunchKind.TASK:
        wanted = row is not None and row.state == "queued" and row.token == launch.token
        require(wanted, f"{launch.token} is submitted although its task does not wait for it")


def sent(world: World, token: str) -> None:
    """Nothing is sent that the ledger does not know as submitted: it was committed, and written ahead."""
    launch = world.ledger.rows.get(token)
    require(launch is not None and launch.submitted_at is not None, f"{token} was sent unwritten")


def claimed(row: TaskRow | None, token: str) -> None:
    """A launch is claimed only together with its task, which waits for it in QUEUED."""
    waits = row is not None and row.state == "queued" and row.token == token
    require(waits, f"{token} was claimed although its task does not wait for it")


def won(world: World, token: str) -> None:
    """At most one claimant ever wins a launch."""
    require(len(world.winners[token]) <= 1, f"{token} was claimed by {sorted(world.winners[token])}")


def refused(world: World, token: str, subject_id: str, claimant: str) -> None:
    """The claimant that holds the claim of a running task is not refused when it asks again."""
    row = world.task_by_id(subject_id)
    if row is None or row.token != token or row.state != "running":
        return
    launch = world.ledger.rows.get(token)
    holds = launch is not None and launch.state.value == "claimed" and launch.claimant == claimant
    require(not holds, f"{claimant} holds {token} and was refused it")


def body_started(world: World, subject_id: str, kind: LaunchKind) -> None:
    """One body of a task instance at a time; of a callback, one for ever."""
    bodies = [one for one in world.executions if one.subject_id == subject_id]
    if kind is LaunchKind.CALLBACK:
        require(sum(one.body_ran for one in bodies) <= 1, f"the body of callback {subject_id} ran twice")
    else:
        require(sum(one.body_alive for one in bodies) <= 1, f"two bodies of task {subject_id} run at once")


def call_accepted(world: World, subject_id: str, token: str, claimant: str) -> None:
    """A call after the claim is accepted only from the winner of the current launch."""
    row = world.task_by_id(subject_id)
    require(row is not None and row.token == token, f"a call under the old token {token} was accepted")
    require(claimant in world.winners[token], f"a call of {claimant}, which never won {token}, was accepted")


def written_by_core(row: TaskRow, by: str) -> None:
    """Answers of the executor never let the scheduler take a task away from a worker that runs it."""
    require(row.state in ("queued", "scheduled"), f"{by} overwrote {row.place} while {row.state}")


def relaunch_begins(row: TaskRow, old: Launch) -> None:
    """A relaunch replaces the launch that its task waits for, and no other."""
    require(row.token == old.token, f"{old.token} is launched again, and {row.place} waits for {row.token}")


def relaunched(world: World, old: str, new: str) -> None:
    """A relaunch ends the old launch, is bounded, and never repeats a callback that was claimed."""
    launch = world.ledger.rows[old]
    require(launch.state.value not in OPEN, f"{old} is {launch.state.value} after its relaunch as {new}")
    world.replaced[new] = old
    length, token = 0, new
    while token in world.replaced:
        length, token = length + 1, world.replaced[token]
    require(length <= MOST_RELAUNCHES, f"{new} is relaunch {length} in a row")
    claimed = launch.kind is LaunchKind.CALLBACK and world.ledger.claimed_elsewhere(launch)
    require(not claimed, f"{new} repeats callback {launch.subject_id}, which was claimed")


def emitted(world: World, emission: Emission) -> None:
    """A terminal event is about the current launch of a task of ours that still waits for it."""
    launch = emission.launch
    if launch is None or launch.kind is LaunchKind.CALLBACK:
        return
    row = world.tasks[launch.task_id or ""]
    where = f"the event {emission.state} of {launch.token}"
    require(row.token == launch.token, f"{where} is not of the current launch")
    require(row.ours, f"{where} is about a task of another executor")
    require(row.state in WAITS_FOR_A_LAUNCH, f"{where} contradicts {row.state}")
    require(launch.was_claimed or emission.state == "failed", f"{where}: a success that nobody claimed")


def event_applied(world: World, row: TaskRow, emission: Emission) -> None:
    """What the scheduler does because of an event hits neither a newer launch nor a healthy body."""
    if emission.token is None:
        return
    where = f"the event {emission.state} of {emission.token}"
    require(row.token == emission.token, f"{where} hit {row.token}")
    require(row.state in WAITS_FOR_A_LAUNCH, f"{where} overwrote {row.state}")
    if row.state == "running" and not emission.heartbeat_stale:
        alive = [one for one in world.executions if one.subject_id == row.id and one.body_alive]
        require(not alive, f"{where} failed a task whose body runs")


def event_names_launch(row: TaskRow, info: str | None) -> None:
    """A QUEUED or RUNNING event, which makes the scheduler store its ``info``, never comes from us."""
    require(False, f"an event overwrites the token {row.token} with {info}")


def settled(world: World, launch: Launch) -> None:
    """A launch is settled when its subject has left the state in which it waited for this launch."""
    require(launch.state.value not in OPEN, f"{launch.token} was settled while {launch.state.value}")
    if launch.kind is LaunchKind.CALLBACK:
        row = world.callbacks[launch.subject_id]
        if row.deleted:
            return
        # Core may have written QUEUED again meanwhile, with a newer launch (A7).
        newer = any(other.open for other in world.ledger.others(launch))
        replaced = launch.token in world.replaced.values()
        require(
            row.state in FINISHED or newer or replaced,
            f"{launch.token} was settled, and {row.id} is {row.state}",
        )
        return
    task = world.tasks[launch.task_id or ""]
    waits = task.ours and task.token == launch.token and task.state in WAITS_FOR_A_LAUNCH
    require(not waits, f"{launch.token} was settled, and {task.place} is still {task.state}")


def abandoned(world: World, launch: Launch) -> None:
    """A callback is given up as lost only if nobody runs it, and nobody has told its result."""
    current = world.ledger.rows[launch.token]
    runs = current.state.value == "claimed" and world.claimant_runs(launch)
    require(not runs, f"{launch.token} was given up while its claimant runs it")


def removed(world: World, token: str) -> None:
    """What an artefact left is there until its launch is settled."""
    launch = world.ledger.rows.get(token)
    require(launch is None or launch.settled_at is not None, f"{token} was removed before it was settled")


def taken_over(world: World, launch: Launch, owner: str) -> None:
    """A launch is taken from the dead only."""
    dead = launch.scheduler_job_id in world.failed_jobs
    require(dead, f"{owner} takes {launch.token} from {launch.scheduler_job_id}, which lives")


def duplicate_failed(world: World, token: str) -> None:
    """A second delivery never leaves a failure for a launch that somebody else runs healthily."""
    running = {row.id for row in world.tasks.values() if row.state == "running" and row.token == token}
    alive = [one for one in world.executions if one.subject_id in running and one.body_alive]
    require(not alive, f"a duplicate of {token} left a failure while the first one runs")


# What is checked after every step


def check(world: World) -> None:
    """Check what must hold at any time."""
    newest: dict[str, int] = {}
    tasks = [one for one in world.ledger.rows.values() if one.kind is LaunchKind.TASK]
    for launch in tasks:
        if launch.submitted_at is not None:
            newest[launch.task_id or ""] = launch.sequence
    for launch in tasks:
        if launch.state.value in OPEN:
            require(
                launch.sequence >= newest.get(launch.task_id or "", 0),
                f"{launch.token} is open although a newer launch was submitted",
            )


# What is checked when everything has come to rest


def at_rest(world: World) -> None:
    """No workload is lost, every slot is free, and everything that ended tells the truth."""
    for task in world.tasks.values():
        require(task.state in FINISHED, f"task {task.place} was lost while {task.state}")
        if task.state == "success":
            require(task.said_success, f"task {task.place} is a success that nobody reported")
    for callback in world.callbacks.values():
        if callback.deleted:
            continue
        require(callback.state in FINISHED, f"callback {callback.id} was lost while {callback.state}")
        told = callback.result or "failed"
        require(callback.state == told, f"callback {callback.id} is {callback.state}, its body said {told}")
    for launch in world.ledger.rows.values():
        require(launch.state.value not in OPEN, f"{launch.token} was lost while {launch.state.value}")
        require(launch.settled_at is not None, f"{launch.token} was never settled")
    for scheduler in world.live_schedulers():
        require(not scheduler.running, f"slots of {scheduler.job_id} leaked: {scheduler.running}")
        require(not scheduler.queued, f"{scheduler.job_id} still queues {scheduler.queued}")
