# SPDX-License-Identifier: Apache-2.0
"""The executor's submitting in the model: the check of a batch, the write-ahead, the send (rules 3 to 6).

It follows ``dispatcher.dispatch.submit``, on the model's rows and with the domain's decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind
from dispatcher.domain.protocol import SubmitVerdict
from tests.unit.protocol_model import oracle
from tests.unit.protocol_model.artefacts import SendAnswer
from tests.unit.protocol_model.memory import Emission

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dispatcher.dispatch.flights import Flight
    from dispatcher.domain.launch import Launch
    from tests.unit.protocol_model.rows import Key
    from tests.unit.protocol_model.scheduler import Scheduler

PARALLELISM = 4
"""Slots of one executor."""


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
    for token in sorted(superseded):
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
    for token in sorted(cleared):
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
