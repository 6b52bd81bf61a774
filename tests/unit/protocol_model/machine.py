# SPDX-License-Identifier: Apache-2.0
"""The state machine: any interleaving of schedulers, workers, users and faults, found by hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.domain.lifecycle import BackendName
from tests.unit.protocol_model import oracle
from tests.unit.protocol_model.execution import REPORTS, Stage
from tests.unit.protocol_model.rest import come_to_rest
from tests.unit.protocol_model.rules import Rules
from tests.unit.protocol_model.scheduler import OPERATIONS
from tests.unit.protocol_model.world import World

if TYPE_CHECKING:
    from tests.unit.protocol_model.execution import Execution
    from tests.unit.protocol_model.scheduler import Scheduler

A_FEW = st.integers(0, 7)
"""Picks one of what there is, by remainder."""

TO_THE_END = 99
STEPS = st.sampled_from([TO_THE_END, TO_THE_END, TO_THE_END, 1, 2, 3, 4, 6, 9])
WORK = ("loop", "loop", "loop", *OPERATIONS)
FAULTS = ("database_fails", "send_lost", "send_answer_lost", "row_is_locked", "dies", "stalls")
OUTSIDE = ("schedule", "schedule", "schedule", "time", "time", "heartbeat", "clear", "mark")


def machine_for(rules: Rules) -> type[RuleBasedStateMachine]:
    """Return the machine under these rules.

    :param rules: the protocol, or a mutant of it
    """
    return type("ProtocolMachine", (ProtocolMachine,), {"protocol": rules})


class ProtocolMachine(RuleBasedStateMachine):
    """Two schedulers, workers and pods, one or two tasks, a callback."""

    protocol = Rules()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.protocol)

    # The beginning

    @initialize(
        tasks=st.lists(st.tuples(st.sampled_from(BackendName), st.booleans()), min_size=1, max_size=2),
        callback=st.sampled_from([None, *BackendName]),
        loops=st.integers(0, 2),
    )
    def begin(self, tasks: list[tuple[BackendName, bool]], callback: BackendName | None, loops: int) -> None:
        """Start two schedulers, with something to do, and perhaps already on its way."""
        for backend, fresh_ids in tasks:
            self.world.schedule(self.world.add_task(backend, fresh_ids=fresh_ids))
        if callback is not None:
            self.world.add_callback(callback)
        first = self.world.add_scheduler()
        self.world.add_scheduler()
        for _ in range(loops):
            first.run("loop")

    # Schedulers

    def _alive(self) -> list[Scheduler]:
        return [one for one in self.world.schedulers if one.alive]

    @precondition(lambda self: self._alive())
    @rule(which=A_FEW, operation=st.sampled_from(WORK), steps=STEPS)
    def schedulers_work(self, which: int, operation: str, steps: int) -> None:
        """Let a scheduler begin an operation, or go on with the one that it is in."""
        scheduler = pick(self._alive(), which)
        if scheduler.idle:
            scheduler.begin(operation)
        for _ in range(steps):
            scheduler.step()

    @precondition(lambda self: self._alive())
    @rule(which=A_FEW, fault=st.sampled_from(FAULTS), row=A_FEW)
    def schedulers_fail(self, which: int, fault: str, row: int) -> None:
        """Disturb a scheduler, let it die, or only be taken for dead; another one takes its place."""
        scheduler = pick(self._alive(), which)
        if fault == "dies":
            self.world.kill_scheduler(scheduler)
        elif fault == "stalls":
            self.world.declare_dead(scheduler)
        elif fault == "row_is_locked":
            scheduler.locked_for_it.add(pick(list(self.world.tasks), row))
        else:
            setattr(scheduler, fault, True)
        if not self.world.live_schedulers():
            self.world.add_scheduler()

    # Backends and workers

    @precondition(lambda self: self.world.broker.ready or self._startable())
    @rule(which=A_FEW, stock=st.booleans(), steps=st.sampled_from([2, 2, 1, 0]))
    def workers_take(self, which: int, stock: bool, steps: int) -> None:
        """Give a message to a worker, or let a node start a pod."""
        waiting = [*range(len(self.world.broker.ready)), *self._startable()]
        chosen = pick(waiting, which)
        if isinstance(chosen, str):
            execution = self.world.start_pod(chosen)
        else:
            stock = stock and self.world.broker.ready[chosen] not in self._tokens_of_callbacks()
            execution = self.world.deliver(chosen, stock=stock)
        for _ in range(steps):
            self._claim(execution)

    def _startable(self) -> list[str]:
        return [
            token for token, pod in self.world.cluster.pods.items() if pod.ending is None and pod.starts < 2
        ]

    def _tokens_of_callbacks(self) -> set[str]:
        launches = self.world.ledger.rows.values()
        return {one.token for one in launches if one.subject_id in self.world.callbacks}

    @precondition(lambda self: self._present())
    @rule(which=A_FEW, state=st.sampled_from(REPORTS), to_the_end=st.booleans(), answer_lost=st.booleans())
    def workers_go_on(self, which: int, state: str, to_the_end: bool, answer_lost: bool) -> None:
        """Let an execution do what comes next: claim, tell its end, end."""
        execution = pick(self._present(), which)
        if execution.stage in (Stage.ASKING, Stage.PERMITTED):
            self._claim(execution, answer_lost=answer_lost)
            return
        if execution.stage is Stage.RUNNING:
            execution.report(state)
            if not to_the_end:
                return
        execution.finish()

    def _present(self) -> list[Execution]:
        return [one for one in self.world.executions if one.stage is not Stage.OVER]

    def _claim(self, execution: Execution, *, answer_lost: bool = False) -> None:
        if execution.stage is Stage.ASKING:
            execution.ask()
        elif execution.stage is Stage.PERMITTED:
            execution.take(answer_lost=answer_lost)

    @precondition(lambda self: self._present() or self.world.cluster.pods or self.world.broker.known)
    @rule(which=A_FEW, what=st.sampled_from(["again", "again", "die", "vanish", "evict", "delete"]))
    def backends_fail(self, which: int, what: str) -> None:
        """Deliver a message again, kill a worker, evict or delete a pod."""
        if what == "again" and self.world.broker.known:
            self.world.broker.ready.append(pick(self.world.broker.known, which))
        elif what in ("die", "vanish") and self._present():
            execution = pick(self._present(), which)
            if what == "vanish" and execution.may_vanish:
                execution.vanish()
            else:
                execution.die()
        elif what == "evict" and self.world.cluster.pods:
            self.world.fail_pod(pick(list(self.world.cluster.pods), which), "Evicted")
        elif what == "delete" and self.world.cluster.pods:
            self.world.delete_pod(pick(list(self.world.cluster.pods), which))

    # Users, triggers, time

    @rule(which=A_FEW, what=st.sampled_from(OUTSIDE), seconds=st.sampled_from([60, 350, 10, 700]))
    def world_goes_on(self, which: int, what: str, seconds: int) -> None:
        """Let time pass, bodies tell that they live, triggers fire, users interfere."""
        row = pick(list(self.world.tasks.values()), which)
        if what == "time":
            self.world.pass_time(seconds)
        elif what == "heartbeat":
            for execution in self.world.executions:
                if execution.body_alive:
                    execution.heartbeat()
        elif what == "schedule":
            self._schedule_all()
        elif what == "clear":
            self.world.clear(row)
        else:
            self.world.mark(row, "success" if seconds > 60 else "failed")

    def _schedule_all(self) -> None:
        for row in self.world.tasks.values():
            if row.state in oracle.FINISHED:
                self.world.clear(row)
            self.world.fire_trigger(row)
            self.world.schedule(row)

    # What must hold

    @invariant()
    def holds(self) -> None:
        """Check what must hold at any time."""
        oracle.check(self.world)

    def teardown(self) -> None:
        """Check what must hold when everything has come to rest."""
        come_to_rest(self.world)


def pick(some: list[Any], which: int) -> Any:
    """Return one of several."""
    return some[which % len(some)]
