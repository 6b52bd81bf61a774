# SPDX-License-Identifier: Apache-2.0
"""One scheduler process: Airflow's loop around our executor, with what both keep in memory.

Each operation is a generator. Between two of its steps anything else may happen, and the process may die or
stall there: a step ends where a transaction is committed, before and after a call to a backend, and between
a read and the compare-and-set that relies on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.dispatch.flights import Flight, FlightTable
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchEvent, LaunchKind, LaunchState
from dispatcher.domain.protocol import AdoptVerdict, Ending, RevokeVerdict
from dispatcher.domain.relaunching import relaunch_reason
from tests.unit.protocol_model import core, heartbeat, oracle, submitting
from tests.unit.protocol_model.memory import Emission, Report, Told
from tests.unit.protocol_model.rows import CallbackKey
from tests.unit.protocol_model.submitting import PARALLELISM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.protocol_model.rows import CallbackRow, Key, TaskRow
    from tests.unit.protocol_model.world import World

OPERATIONS = ("loop", "callbacks", "stuck", "purge", "adopt", "relaunch")
RELAUNCHES = 2
"""In a row, of one subject."""

TOLD = Told("failed", "heartbeat timeout")


class Scheduler:
    """A scheduler and its executor.

    :param world: where it lives
    :param job_id: of its job row
    """

    def __init__(self, world: World, job_id: str) -> None:
        self.world = world
        self.rules = world.rules
        self.job_id = job_id
        self.alive = True
        self.database_fails = False
        self.send_answer_lost = False
        self.send_lost = False
        self.locked_for_it: set[str] = set()
        self.queued: dict[Key, str] = {}
        self.running: set[Key] = set()
        self.flights = FlightTable()
        self.reports: dict[str, Report] = {}
        self.settleable: dict[str, Launch] = {}
        self.told: dict[str, Told] = {}
        self.buffer: dict[Key, Emission] = {}
        self.watching: set[str] = set()
        self.next_sweep = world.now
        self._work: Iterator[None] | None = None

    # Running

    @property
    def idle(self) -> bool:
        """Whether it is between two operations."""
        return self._work is None

    def begin(self, operation: str) -> None:
        """Begin one of ``OPERATIONS``; the process has one thread."""
        assert self.idle
        self._work = getattr(self, operation)()

    def step(self) -> None:
        """Go on to the next point at which something else may happen."""
        if self._work is not None and next(self._work, self) is self:
            self._work = None

    def finish(self) -> None:
        """Go on until the operation is over."""
        while not self.idle:
            self.step()

    def run(self, operation: str) -> None:
        """Run one operation without interruption."""
        self.begin(operation)
        self.finish()

    def commits(self) -> bool:
        """Whether the transaction at hand is committed; a failure of the database is over after it."""
        fails, self.database_fails = self.database_fails, False
        return not fails

    def has_task(self, row: TaskRow) -> bool:
        """Whether the executor knows the present try of a task."""
        return row.key in self.queued or row.key in self.running

    def occupied(self) -> int:
        """Return how many slots are taken."""
        return len(self.queued) + len(self.running)

    # Airflow's loop

    def loop(self) -> Iterator[None]:
        """Run one turn of the scheduler's loop."""
        self._critical_section()
        yield
        yield from submitting.submit(self)
        yield from heartbeat.sync(self)
        yield from heartbeat.report(self)
        yield from self.callbacks()

    def _critical_section(self) -> None:
        rows = [row for row in self.world.tasks.values() if row.state == "scheduled" and row.ours]
        rows = rows[: PARALLELISM - self.occupied()]
        if not rows:
            return
        committed = self.commits()
        for row in rows:
            token = self.world.new_id("token") if row.fresh_ids else row.token
            if self.rules.needs_new_token(token, in_ledger=token in self.world.ledger.rows):
                token = self.world.new_id("token")
            launch = self._launch_of_task(row, token or "")
            self._remember(launch, row.key)
            if self.rules.sends_at_once():
                self.world.send(launch, launch.token)
            if committed:
                self.world.issue(launch)
                row.state, row.token = "queued", token
                row.queued_by, row.queued_at = self.job_id, self.world.now

    def _remember(self, launch: Launch, key: Key) -> None:
        self.flights.add(Flight(launch=launch, key=key, workload=launch.token))
        self.queued[key] = launch.token

    def _launch_of_task(self, row: TaskRow, token: str) -> Launch:
        return Launch(
            sequence=0,
            token=token,
            kind=LaunchKind.TASK,
            subject_id=row.id,
            state=LaunchState.ISSUED,
            backend=BackendName(row.backend),
            queue="default",
            dag_id="dag",
            run_id="run",
            task_id=row.place,
            try_number=row.try_number,
            scheduler_job_id=self.job_id,
            issued_at=self.world.now,
        )

    def callbacks(self) -> Iterator[None]:
        """Queue pending callbacks, which are read without locks: another scheduler may do so too (A7)."""
        room = PARALLELISM - self.occupied()
        pending = [
            row for row in self.world.callbacks.values() if row.state == "pending" and not row.deleted
        ][:room]
        if not pending:
            return
        yield
        committed = self.commits()
        for row in pending:
            launch = self._launch_of_callback(row)
            self._remember(launch, CallbackKey(row.id))
            if committed:
                self.world.issue(launch)
                row.state = "queued"

    def _launch_of_callback(self, row: CallbackRow) -> Launch:
        return Launch(
            sequence=0,
            token=self.world.new_id("token"),
            kind=LaunchKind.CALLBACK,
            subject_id=row.id,
            state=LaunchState.ISSUED,
            backend=BackendName(row.backend),
            queue="callbacks",
            scheduler_job_id=self.job_id,
            issued_at=self.world.now,
        )

    # Airflow's timers

    def stuck(self) -> Iterator[None]:
        """Handle tasks that have been queued for too long (rule 17)."""
        for row in core.stuck_in_queued(self):
            yield
            self._handle_stuck(row)

    def _handle_stuck(self, row: TaskRow) -> None:
        # The executor's hook locks the row; what core writes follows in the same transaction.
        launch = self.world.ledger.rows.get(row.token or "")
        verdict = self.rules.judge_revoke(launch, row.subject())
        if verdict is RevokeVerdict.DECLINE or not self.commits():
            return
        if verdict is RevokeVerdict.REVOKE and launch is not None:
            reason = "stuck in queued"
            if not self.world.ledger.record(
                LaunchEvent.REVOKE, launch.token, self.world.now, end_reason=reason
            ):
                return
        self.unqueue(row.key)
        self.running.discard(row.key)
        if launch is not None:
            self.flights.forget(launch.token)
        key = row.key
        if not core.requeue_stuck(self, row):
            self.change_state(key, Told("failed", None))

    def purge(self) -> Iterator[None]:
        """Fail tasks whose heartbeat has stood still."""
        for row in core.without_heartbeat(self):
            yield
            self.change_state(row.key, TOLD)

    def change_state(self, key: Key, told: Told) -> None:
        """Take up what the scheduler says of a task; the slot is free at once (rule 15)."""
        self.unqueue(key)
        self.running.discard(key)
        flight = self.flights.current(key)
        if flight is None:
            self.buffer[key] = Emission(state=told.state)
            return
        self.told[flight.token] = told
        ending = Ending(ok=False, proven=True, reason=told.reason)
        self.reports[flight.token] = Report(flight.launch, key, ending, told=True)
        self.flights.forget(flight.token)

    def adopt(self) -> Iterator[None]:
        """Adopt or reset the work of schedulers that were declared dead (rule 18), in one transaction."""
        if not self.commits():
            return
        for row in core.orphans(self):
            launch = self.world.ledger.rows.get(row.token or "")
            verdict = self.rules.judge_adopt(launch, row.subject())
            if verdict is AdoptVerdict.HAND_BACK:
                core.reset(self, row)
                continue
            if verdict is AdoptVerdict.TAKE_OVER and launch is not None:
                self._take_over(launch, {launch.scheduler_job_id})
            row.queued_by = self.job_id
        self._adopt_what_no_task_leads_to()
        self.next_sweep = self.world.now
        yield

    def _adopt_what_no_task_leads_to(self) -> None:
        # Launches of callbacks, and of tasks that ended or went on while no scheduler looked.
        for launch in list(self.world.ledger.rows.values()):
            self._take_over(launch, self.world.failed_jobs)

    def _take_over(self, launch: Launch, dead: set[str | None]) -> None:
        mine = launch.scheduler_job_id == self.job_id
        if self.world.ledger.take_over(launch.token, self.job_id, dead) and not mine:
            oracle.taken_over(self.world, launch, self.job_id)

    # Ours alone

    def relaunch(self) -> Iterator[None]:
        """Replace launches that never ran by new ones of the same subjects (rule 6)."""
        for launch in [flight.launch for flight in self.flights]:
            yield
            self._replace(launch)

    def _replace(self, seen: Launch) -> None:
        ledger = self.world.ledger
        launch = ledger.rows.get(seen.token)
        if launch is None or not self.rules.owns(launch, self.job_id):
            return
        subject = self.world.subject_of(launch)
        if not self.rules.may_relaunch(launch, subject, ledger.others(launch)):
            return
        number = self.rules.relaunches(ledger.of_subject(launch)) + 1
        if number > RELAUNCHES or not self.commits():
            return
        row = self.world.task_of(launch)
        if row is not None:
            core.check_write(row, "a relaunch")
            oracle.relaunch_begins(row, launch)
        if self.rules.relaunch_ends_the_old():
            ledger.record(LaunchEvent.SUPERSEDE, launch.token, self.world.now)
        new = self._successor(launch, number)
        self.world.issue(new)
        if row is not None:
            row.token, row.queued_at = new.token, self.world.now
        oracle.relaunched(self.world, launch.token, new.token)
        key = self.flights.forget(launch.token).key
        self.running.discard(key)
        self._remember(new, key)

    def _successor(self, launch: Launch, number: int) -> Launch:
        return launch._replace(
            token=self.world.new_id("token"),
            state=LaunchState.ISSUED,
            route_reason=relaunch_reason(launch, number),
            issued_at=self.world.now,
            submitted_at=None,
            ended_at=None,
        )

    def unqueue(self, key: Key) -> None:
        """Take a workload out of Airflow's queue."""
        self.queued.pop(key, None)
