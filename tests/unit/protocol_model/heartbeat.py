# SPDX-License-Identifier: Apache-2.0
"""The executor's heartbeat in the model: submit, observe, sweep, report, settle.

It follows ``dispatcher.dispatch`` step by step, on the model's rows and with the domain's decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dispatcher.dispatch.flights import Flight
from dispatcher.dispatch.observe import event_after_leaving, event_for, left_running
from dispatcher.dispatch.reports import Report as RealReport
from dispatcher.dispatch.reports import ending_of, event_of
from dispatcher.dispatch.sweep import GRACE
from dispatcher.domain.lifecycle import ENDED, OPEN, LaunchEvent, LaunchKind, LaunchState, sources
from dispatcher.domain.protocol import Ending, ReportVerdict, SubmitVerdict
from tests.unit.protocol_model import core, oracle
from tests.unit.protocol_model.artefacts import SendAnswer
from tests.unit.protocol_model.memory import Emission, Report
from tests.unit.protocol_model.rows import CallbackKey, TaskKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dispatcher.backends.base import Observation
    from dispatcher.domain.launch import Launch, Subject
    from tests.unit.protocol_model.rows import Key
    from tests.unit.protocol_model.scheduler import Scheduler
    from tests.unit.protocol_model.world import World

SWEEP_SECONDS = 5
PARALLELISM = 4


# Submitting (rules 3 to 6)


def submit(self: Scheduler) -> Iterator[None]:
    """Send what waits, for as many workloads as there are slots."""
    keys = list(self.queued)[: PARALLELISM - len(self.running)]
    flights = [flight for key in keys if (flight := self.flights.current(key)) and flight.workload]
    if not keys:
        return
    verdicts = _judge(self, flights)
    yield
    if not self.commits():
        return
    cleared, superseded = _clear(self, flights, verdicts)
    yield
    sent: set[str] = set()
    for flight in flights:
        if flight.token in cleared and _send(self, flight):
            sent.add(flight.token)
        yield
    _note_sent(self, keys, flights, cleared, sent)
    for token in superseded:
        free(self, token)


def _judge(self: Scheduler, flights: list[Flight]) -> dict[str, SubmitVerdict]:
    world = self.world
    verdicts = {}
    for flight in flights:
        launch = world.ledger.rows.get(flight.token)
        subject = None if launch is None else world.subject_of(launch)
        elsewhere = launch is not None and world.ledger.claimed_elsewhere(launch)
        verdicts[flight.token] = self.rules.judge_submit(
            launch, subject, self.job_id, claimed_elsewhere=elsewhere
        )
    return verdicts


def _clear(
    self: Scheduler, flights: list[Flight], verdicts: Mapping[str, SubmitVerdict]
) -> tuple[set[str], set[str]]:
    world, now = self.world, self.world.now
    cleared, superseded = set(), set()
    for flight in flights:
        verdict = verdicts[flight.token]
        if verdict is SubmitVerdict.DROP:
            reason = "no longer wanted when it was to be sent"
            world.ledger.record(LaunchEvent.DROP, flight.token, now, owner=self.job_id, end_reason=reason)
        elif verdict is SubmitVerdict.SEND and _write_ahead(self, flight.token):
            cleared.add(flight.token)
            flight.launch = world.ledger.rows[flight.token]
    for token in cleared:
        newer = world.ledger.rows[token]
        for launch in list(world.ledger.rows.values()):
            old = self.rules.is_made_old_by(launch, newer)
            if old and world.ledger.record(LaunchEvent.SUPERSEDE, launch.token, now):
                superseded.add(launch.token)
    return cleared, superseded


def _write_ahead(self: Scheduler, token: str) -> bool:
    world = self.world
    before = world.ledger.rows.get(token)
    row = None if before is None else world.task_of(before)

    def wanted(launch: Launch) -> bool:
        return launch.kind is LaunchKind.CALLBACK or self.rules.submit_finds(row, launch.token)

    hit = world.ledger.record(LaunchEvent.SUBMIT, token, world.now, owner=self.job_id, where=wanted)
    if hit:
        oracle.submitted(world.ledger.rows[token], row, self.job_id)
    return hit


def _send(self: Scheduler, flight: Flight) -> bool:
    """Send one artefact; a time-out may hide that it arrived, or that it did not."""
    if self.send_lost:
        self.send_lost = False
        return False
    answer = self.world.send(flight.launch, self.rules.token_to_send(flight.launch))
    self.watching.add(flight.token)
    if self.send_answer_lost:
        self.send_answer_lost = False
        return False
    if answer is SendAnswer.SENT:
        flight.workload = None
    return answer is SendAnswer.SENT


def _note_sent(
    self: Scheduler, keys: list[Key], flights: list[Flight], cleared: set[str], sent: set[str]
) -> None:
    for key in keys:
        if self.flights.current(key) is None:
            self.unqueue(key)
            self.running.discard(key)
    for flight in flights:
        if flight.token in sent:
            self.unqueue(flight.key)
            self.running.add(flight.key)
            if self.rules.reports_start():
                self.buffer[flight.key] = Emission("queued", flight.launch)
        elif flight.token not in cleared:
            free(self, flight.token)
            self.next_sweep = self.world.now


def free(self: Scheduler, token: str) -> None:
    """Forget a flight; its slot is free unless a newer launch of the same key has it."""
    flight = self.flights.forget(token)
    if flight is not None and self.flights.current(flight.key) is None:
        self.unqueue(flight.key)
        self.running.discard(flight.key)


# Observing and sweeping


@dataclass(slots=True)
class _Read:
    """What one heartbeat read, some steps before it writes."""

    seen: dict[str, Observation]
    observed: dict[str, tuple[Launch, Subject | None]]
    flying: dict[str, tuple[Launch | None, Subject | None, bool]]
    sweeps: bool
    ended: list[Report] = field(default_factory=list)
    stray: set[str] = field(default_factory=set)


def sync(self: Scheduler) -> Iterator[None]:
    """Observe the backends, write what ended, sweep, and settle what Airflow has heard."""
    seen = {
        one.token: one
        for backend in self.world.backends.values()
        for one in backend.observe()
        if one.token in self.watching
    }
    yield
    read = _read(self, seen)
    yield
    if not self.commits():
        return
    told = dict(self.told)
    _write_told(self)
    _write_ends(self, read)
    forget, unknown = _sweep(self, read) if read.sweeps else (set(), [])
    unsettled = [one for one in _mine(self) if one.state in ENDED and one.settled_at is None]
    yield
    _apply(self, read, forget, unknown)
    for token in told:
        self.told.pop(token, None)
    _take_up_unsettled(self, unsettled, read.stray)
    yield
    settled = _settle(self)
    yield
    _remove(self, settled, {token for token in read.stray if not _reported(self, token)})


def _mine(self: Scheduler) -> list[Launch]:
    return [one for one in self.world.ledger.rows.values() if one.scheduler_job_id == self.job_id]


def _read(self: Scheduler, seen: dict[str, Observation]) -> _Read:
    world = self.world
    observed = {
        token: (launch, world.subject_of(launch)) for token, launch in world.ledger.read(seen).items()
    }
    flying: dict[str, tuple[Launch | None, Subject | None, bool]] = {}
    for flight in self.flights:
        launch = world.ledger.rows.get(flight.token)
        if launch is None:
            flying[flight.token] = (None, None, False)
        else:
            elsewhere = world.ledger.claimed_elsewhere(launch)
            flying[flight.token] = (launch, world.subject_of(launch), elsewhere)
    return _Read(seen, observed, flying, sweeps=world.now >= self.next_sweep)


def _write_told(self: Scheduler) -> None:
    for token, told in self.told.items():
        launch = self.world.ledger.rows.get(token)
        if launch is None:
            continue
        failed = launch.state in sources(LaunchEvent.END_FAILED, launch.kind)
        event = LaunchEvent.END_FAILED if failed else LaunchEvent.DROP
        reason = f"ended by the scheduler: {told.reason}"
        self.world.ledger.record(event, token, self.world.now, owner=self.job_id, end_reason=reason)


def _write_ends(self: Scheduler, read: _Read) -> None:
    read.stray |= set(read.seen) - set(read.observed)
    for token, (launch, subject) in read.observed.items():
        if not self.rules.owns(launch, self.job_id):
            continue
        if not launch.open:
            read.stray.add(token)
            continue
        report = _end_one(self, launch, subject, read.seen[token])
        if report is not None:
            read.ended.append(report)


def _end_one(
    self: Scheduler, launch: Launch, subject: Subject | None, observation: Observation
) -> Report | None:
    world = self.world
    ending = self.rules.ending(launch, observation)
    verdict = _judge_report(self, launch, subject, ending)
    if verdict is ReportVerdict.WAIT:
        return None
    event = event_for(launch, subject, ending, observation, verdict)
    if not _write_end(self, launch, event, ending.reason):
        return None
    return Report(world.ledger.rows[launch.token], key_of(self, launch), ending)


def _judge_report(self: Scheduler, launch: Launch, subject: Subject | None, ending: Ending) -> ReportVerdict:
    world = self.world
    others = world.ledger.others(launch)
    return self.rules.judge_report(launch, subject, ending, world.now, world.heartbeat_timeout, others)


def _write_end(self: Scheduler, judged: Launch, event: LaunchEvent, reason: str | None) -> bool:
    return self.world.ledger.record(
        event,
        judged.token,
        self.world.now,
        owner=self.job_id,
        where=lambda launch: launch.state is judged.state,
        end_reason=reason,
    )


def _sweep(self: Scheduler, read: _Read) -> tuple[set[str], list[Launch]]:
    forget = set()
    for flight in self.flights:
        if flight.token not in read.flying:
            continue
        launch, subject, elsewhere = read.flying[flight.token]
        if launch is None or not self.rules.owns(launch, self.job_id):
            forget.add(flight.token)
            continue
        flight.launch = launch
        _look_at(self, flight, launch, subject, claimed_elsewhere=elsewhere)
    known = self.flights.tokens()
    return forget, [one for one in _mine(self) if one.state in OPEN and one.token not in known]


def _look_at(
    self: Scheduler, flight: Flight, launch: Launch, subject: Subject | None, *, claimed_elsewhere: bool
) -> None:
    if launch.unclaimed:
        verdict = self.rules.judge_submit(launch, subject, self.job_id, claimed_elsewhere=claimed_elsewhere)
        if verdict is SubmitVerdict.DROP:
            _write_end(self, launch, LaunchEvent.DROP, "no longer wanted before it was claimed")
        return
    if launch.state is not LaunchState.CLAIMED or launch.kind is LaunchKind.CALLBACK:
        return
    if not left_running(launch, subject):
        flight.left_at = None
        return
    now = self.world.now.timestamp()
    flight.left_at = now if flight.left_at is None else flight.left_at
    if now - flight.left_at >= GRACE:
        event, reason = event_after_leaving(launch, subject)
        _write_end(self, launch, event, reason)


def _apply(self: Scheduler, read: _Read, forget: set[str], unknown: list[Launch]) -> None:
    for report in read.ended:
        self.reports[report.launch.token] = report
        free(self, report.launch.token)
        if self.rules.removes_at_once():
            _remove(self, [report.launch], set())
    if not read.sweeps:
        return
    self.next_sweep = self.world.after(SWEEP_SECONDS)
    for token in forget:
        free(self, token)
    for launch in unknown:
        _take_up(self, launch)


def _take_up(self: Scheduler, launch: Launch) -> None:
    key = key_of(self, launch)
    workload = launch.token if launch.unclaimed and _can_rebuild(self.world, launch) else None
    self.flights.add(Flight(launch=launch, key=key, workload=workload))
    if workload is not None:
        self.queued[key] = workload
    else:
        self.running.add(key)
    if launch.state is not LaunchState.ISSUED:
        self.watching.add(launch.token)


def _can_rebuild(world: World, launch: Launch) -> bool:
    row = world.task_of(launch)
    return launch.kind is LaunchKind.CALLBACK or (row is not None and row.token == launch.token)


def _take_up_unsettled(self: Scheduler, unsettled: list[Launch], ended_artefacts: set[str]) -> None:
    for launch in unsettled:
        key = key_of(self, launch)
        free(self, launch.token)
        if not _reported(self, launch.token) and not _winds_down(self, launch, ended_artefacts):
            self.reports[launch.token] = Report(launch, key, ending_of(launch))


def _winds_down(self: Scheduler, launch: Launch, ended_artefacts: set[str]) -> bool:
    """Whether a superseded claimant may still be finishing."""
    if launch.state is not LaunchState.SUPERSEDED or not launch.was_claimed or launch.ended_at is None:
        return False
    recent = self.world.now - launch.ended_at < self.world.heartbeat_timeout
    return recent and launch.token not in ended_artefacts


def _reported(self: Scheduler, token: str) -> bool:
    return token in self.reports or token in self.settleable


# Reporting and settling (rules 13 and 14)


def report(self: Scheduler) -> Iterator[None]:
    """Let Airflow drain the event buffer and process it, in two transactions."""
    events = dict(self.buffer)
    self.buffer.clear()
    if self.commits():
        events |= _due(self)
    yield
    if self.commits():
        core.process_events(self, events)
    self.locked_for_it.clear()


def _due(self: Scheduler) -> dict[Key, Emission]:
    events: dict[Key, Emission] = {}
    for token, old in list(self.reports.items()):
        launch = self.world.ledger.rows.get(token)
        if launch is None or not self.rules.owns(launch, self.job_id):
            del self.reports[token]
            continue
        ending = self.rules.callback_ending(launch, old.ending, self.world.ledger.others(launch))
        one = replace(old, launch=launch, ending=ending)
        subject = self.world.subject_of(launch)
        verdict = _judge_report(self, launch, subject, one.ending)
        if verdict is ReportVerdict.EMIT:
            events[one.key] = emission = _emission(self, one, subject)
            oracle.emitted(self.world, emission)
        if verdict is ReportVerdict.SETTLE or (
            verdict is ReportVerdict.EMIT and not self.rules.reports_again()
        ):
            self.settleable[token] = self.reports.pop(token).launch
    return events


def _emission(self: Scheduler, one: Report, subject: Subject | None) -> Emission:
    state, _ = event_of(RealReport(one.launch, one.key, one.ending))
    heartbeat = None if subject is None else subject.heartbeat_at
    stale = heartbeat is None or self.world.now - heartbeat > self.world.heartbeat_timeout
    return Emission(str(state.value), one.launch, heartbeat_stale=stale or one.told)


def _settle(self: Scheduler) -> list[Launch]:
    if not self.settleable or not self.commits():
        return []
    settled = list(self.settleable.values())
    for token in list(self.settleable):
        oracle.settled(self.world, self.world.ledger.rows[token])
        self.world.ledger.settle(token, self.world.now)
        del self.settleable[token]
        self.reports.pop(token, None)
    return settled


def _remove(self: Scheduler, settled: list[Launch], stray: set[str]) -> None:
    for launch in settled:
        oracle.removed(self.world, launch.token)
        backend = self.world.backends[launch.backend]
        if launch.state in (LaunchState.REVOKED, LaunchState.DROPPED, LaunchState.SUPERSEDED):
            backend.revoke(launch.token)
        backend.remove(launch.token)
        self.watching.discard(launch.token)
    for token in stray:
        oracle.removed(self.world, token)
        for backend in self.world.backends.values():
            backend.remove(token)
        self.watching.discard(token)
    self.world.end_executions_of_missing_pods()


def key_of(self: Scheduler, launch: Launch) -> Key:
    """Return how the scheduler knows the subject of a launch."""
    flight = self.flights.get(launch.token)
    if flight is not None:
        key: Key = flight.key
        return key
    if launch.kind is LaunchKind.CALLBACK:
        return CallbackKey(launch.subject_id)
    return TaskKey(launch.task_id or "", launch.try_number or 0)
