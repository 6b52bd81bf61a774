# SPDX-License-Identifier: Apache-2.0
"""The executor's heartbeat in the model: observe, sweep, report, settle (rules 13 and 14).

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
from dispatcher.domain.lifecycle import (
    ENDED,
    OPEN,
    BackendName,
    LaunchEvent,
    LaunchKind,
    LaunchState,
    sources,
)
from dispatcher.domain.protocol import Ending, ReportVerdict, SubmitVerdict
from tests.unit.protocol_model import core, oracle
from tests.unit.protocol_model.memory import Emission, Report
from tests.unit.protocol_model.rows import key_of
from tests.unit.protocol_model.submitting import free

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dispatcher.backends.base import Observation
    from dispatcher.domain.launch import Launch, Subject
    from tests.unit.protocol_model.rows import Key
    from tests.unit.protocol_model.scheduler import Scheduler
    from tests.unit.protocol_model.world import World

SWEEP_SECONDS = 5


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
    return Report(world.ledger.rows[launch.token], _key_of(self, launch), ending)


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
    if launch.kind is LaunchKind.CALLBACK and launch.open and subject is None:
        event = LaunchEvent.DROP if launch.unclaimed else LaunchEvent.OPERATOR_REVOKE
        _write_end(self, launch, event, "its callback was deleted")
        return
    if self.rules.has_expired(launch, self.world.now, self.world.callback_patience):
        _write_end(self, launch, LaunchEvent.EXPIRE, "no worker started it in time")
        return
    if launch.unclaimed:
        verdict = self.rules.judge_submit(launch, subject, self.job_id, claimed_elsewhere=claimed_elsewhere)
        if verdict is SubmitVerdict.DROP:
            _write_end(self, launch, LaunchEvent.DROP, "no longer wanted before it was claimed")
        return
    if launch.state is not LaunchState.CLAIMED:
        return
    if launch.kind is LaunchKind.CALLBACK:
        _lose_what_nobody_runs(self, launch)
        return
    if not left_running(launch, subject):
        flight.left_at = None
        return
    now = self.world.now.timestamp()
    flight.left_at = now if flight.left_at is None else flight.left_at
    if now - flight.left_at >= GRACE:
        event, reason = event_after_leaving(launch, subject)
        _write_end(self, launch, event, reason)


def _lose_what_nobody_runs(self: Scheduler, launch: Launch) -> None:
    """Give up a callback on Celery whose worker vanished; of pods the cluster tells."""
    if launch.backend is not BackendName.CELERY:
        return
    if self.rules.is_abandoned(runs=self.world.claimant_runs(launch)):
        oracle.abandoned(self.world, launch)
        _write_end(self, launch, LaunchEvent.LOSE, "outcome unknown")


def _apply(self: Scheduler, read: _Read, forget: set[str], unknown: list[Launch]) -> None:
    for report in read.ended:
        self.reports[report.launch.token] = report
        free(self, report.launch.token)
        if self.rules.removes_at_once():
            _remove(self, [report.launch], set())
    if not read.sweeps:
        return
    self.next_sweep = self.world.after(SWEEP_SECONDS)
    for token in sorted(forget):
        free(self, token)
    for launch in unknown:
        _take_up(self, launch)


def _take_up(self: Scheduler, launch: Launch) -> None:
    key = _key_of(self, launch)
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
        key = _key_of(self, launch)
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
    for token in sorted(stray):
        oracle.removed(self.world, token)
        for backend in self.world.backends.values():
            backend.remove(token)
        self.watching.discard(token)
    self.world.end_executions_of_missing_pods()


def _key_of(self: Scheduler, launch: Launch) -> Key:
    flight = self.flights.get(launch.token)
    return key_of(launch) if flight is None else flight.key
