# SPDX-License-Identifier: Apache-2.0
"""Submitting: the write-ahead check of a batch against the database, then the send (rules 3 to 5)."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dispatcher.backends.base import (
    BEGIN_SECONDS,
    Backend,
    Outcome,
    Postponed,
    Rejected,
    Sent,
    Submission,
    SubmitResult,
    Underway,
)
from dispatcher.dispatch.ahead import made_meanwhile
from dispatcher.dispatch.clearing import clear
from dispatcher.dispatch.flights import Flight, FlightTable
from dispatcher.dispatch.signing import Signer
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchEvent
from dispatcher.domain.text import storable
from dispatcher.domain.workload import WorkloadKind
from dispatcher.ledger import store
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.ledger.models import LaunchRow

log = logging.getLogger(__name__)

BACK_OFF_LIMIT = 60.0
"""Longest wait between two sends of one launch, in seconds, unless the service asks for a longer one."""

CALLBACK_PRIORITY = 2**31 - 1
"""Callbacks go before tasks, as in Airflow's choice of what gets a slot: no weight is higher than this."""

NOT_READ = Postponed("there was no time for it in one heartbeat", retry_after=0.0, tried=False)
"""What becomes of a launch that a backend did not come to."""


@dataclass(slots=True)
class Submitted:
    """What became of a batch, by token.

    :param sent: in the backend
    :param underway: on their way to it; what becomes of them is told later
    :param waiting: to be tried again
    :param gone: no longer to be sent by this scheduler
    :param rejected: the reasons of those that no backend will ever take
    :param superseded: older launches that newer ones of the batch replaced
    """

    sent: set[str] = field(default_factory=set)
    underway: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    rejected: dict[str, str] = field(default_factory=dict)
    superseded: list[Launch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A signed workload.

    :param workload: Airflow's workload, with its JWT
    :param payload: the same as JSON: a secret
    """

    workload: Any = field(repr=False)
    payload: str = field(repr=False)


PrepareResult = Prepared | Postponed | Rejected


def prepare(signer: Signer, workload: Any, launch_token: str | None) -> PrepareResult:
    """Sign a workload and write it as JSON.

    :param signer: signs at the send
    :param workload: Airflow's workload
    :param launch_token: None for connection tests
    :returns: a key that cannot be used postpones the send, text that is no JSON rejects the workload
    """
    try:
        signed = signer.sign(workload, launch_token)
    except Exception as exc:  # noqa: BLE001  # the key may be a file; whatever is wrong with it may be put right
        return Postponed(f"the workload cannot be signed ({type(exc).__name__})")
    try:
        return Prepared(signed, signed.model_dump_json())
    except ValueError as exc:
        # The error may quote the workload, which holds the JWT by now.
        return Rejected(f"the workload cannot be written as JSON ({type(exc).__name__})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Sends launches that are still to be sent.

    :param backends: by name
    :param signer: signs at the send
    :param owner: job id of this scheduler
    :param session: makes a session of our own (rule 16)
    :param clock: monotonic seconds, for back-off
    :param utcnow: the present, for the ledger
    """

    backends: Mapping[BackendName, Backend]
    signer: Signer
    owner: str
    session: Callable[[], Any]
    clock: Callable[[], float]
    utcnow: Callable[[], datetime]
    _unnoted: dict[str, str] = field(default_factory=dict)

    def submit(self, flights: Sequence[Flight]) -> Submitted:
        """Check a batch against the database, then send what may be sent.

        A database error keeps the whole batch for the next heartbeat (rule 4).

        :param flights: launches with a workload to send
        """
        outcome = Submitted()
        now = self.clock()
        due = [flight for flight in flights if not flight.underway and flight.not_before <= now]
        outcome.underway.update(flight.token for flight in flights if flight.underway)
        outcome.waiting.update(
            flight.token for flight in flights if not flight.underway and flight.not_before > now
        )
        if not due:
            return outcome
        # The highest priority first, as it is handed over.
        due.sort(key=_priority, reverse=True)
        # Signing needs the processor and the check waits for the database: neither waits for the other.
        try:
            with made_meanwhile(self._prepared, due) as made, self.session() as session:
                cleared = clear(session.connection(), due, self.owner, self.utcnow())
                # Until the commit the rows are locked; from then on another scheduler may take them over.
                stale_at = self.clock() + BEGIN_SECONDS
        except DATABASE_ERRORS as exc:
            log.warning(
                "The batch is kept for the next heartbeat: the database failed (%s)", type(exc).__name__
            )
            outcome.waiting.update(flight.token for flight in due)
            return outcome
        outcome.superseded = cleared.superseded
        outcome.gone.update(flight.token for flight in due if flight.token not in cleared.tokens)
        signed = {flight.token: one for flight, one in zip(due, made, strict=False)}
        self._send([flight for flight in due if flight.token in cleared.tokens], signed, stale_at, outcome)
        return outcome

    def collect(self, table: FlightTable, results: Mapping[str, Outcome]) -> Submitted:
        """Take in what became of launches that were underway, and note what could not be noted before.

        :param table: the flights in memory
        :param results: what the backends told, by token; one that is not in memory any more was ended
            meanwhile, and only where its artefact is is noted
        """
        outcome = Submitted()
        external_ids: dict[str, str] = {}
        for token, result in results.items():
            flight = table.get(token)
            if flight is not None:
                self._sort(flight, result, outcome, external_ids)
            elif isinstance(result, Sent):
                external_ids[token] = result.external_id
        self._note(external_ids, outcome.rejected)
        return outcome

    def _prepared(self, flight: Flight) -> PrepareResult:
        return prepare(self.signer, flight.workload, flight.token)

    def _send(
        self,
        flights: Sequence[Flight],
        signed: Mapping[str, PrepareResult],
        stale_at: float,
        outcome: Submitted,
    ) -> None:
        by_backend: dict[BackendName, list[Flight]] = defaultdict(list)
        for flight in flights:
            by_backend[flight.launch.backend].append(flight)
        external_ids: dict[str, str] = {}
        # Pods first: they are only handed over. To send messages may take as long as a check is good.
        for name in (BackendName.KUBERNETES, BackendName.CELERY):
            group = by_backend[name]
            results = self._submit_group(self.backends[name], group, signed, stale_at) if group else {}
            for flight in group:
                self._sort(flight, results[flight.token], outcome, external_ids)
        self._note(external_ids, outcome.rejected)

    def _submit_group(
        self,
        backend: Backend,
        group: Sequence[Flight],
        signed: Mapping[str, PrepareResult],
        stale_at: float,
    ) -> Mapping[str, SubmitResult]:
        not_made: dict[str, SubmitResult] = {}
        sent = backend.submit(self._submissions(group, signed, stale_at, not_made))
        return {**dict.fromkeys((flight.token for flight in group), NOT_READ), **sent, **not_made}

    def _submissions(
        self,
        group: Sequence[Flight],
        signed: Mapping[str, PrepareResult],
        stale_at: float,
        not_made: dict[str, SubmitResult],
    ) -> Iterator[Submission]:
        """Make what the backend is handed, while it reads.

        :param group: callbacks and the highest priority first
        :param signed: what was signed already
        :param stale_at: from when on nothing more is handed over: the check is too old then, for this
            process may have stalled and what it checked may be another scheduler's by now (rule 4)
        :param not_made: takes the answers for what cannot be handed over
        """
        for flight in group:
            if self.clock() > stale_at:
                log.warning("The check of a batch grew old before all of it was handed over; it is repeated")
                return
            made = self.submission(flight, signed.get(flight.token))
            if isinstance(made, Submission):
                yield made
            else:
                not_made[flight.token] = made

    def submission(
        self, flight: Flight, prepared: PrepareResult | None = None
    ) -> Submission | Postponed | Rejected:
        """Return what the backend is handed for one launch, freshly signed, or why there is nothing to hand.

        One workload that cannot be written must not hold up the others, and must never end the scheduler.

        :param flight: the launch
        :param prepared: what came of signing it, if that was done already
        """
        launch = flight.launch
        prepared = prepared or self._prepared(flight)
        if not isinstance(prepared, Prepared):
            return prepared
        signed = prepared.workload
        ti = getattr(signed, "ti", None)
        return Submission(
            token=launch.token,
            kind=WorkloadKind(launch.kind.value),
            queue=launch.queue,
            payload=prepared.payload,
            workload=signed,
            dag_id=launch.dag_id,
            run_id=launch.run_id,
            task_id=launch.task_id,
            map_index=launch.map_index,
            try_number=launch.try_number,
            executor_config=None if ti is None else ti.executor_config,
            priority=_priority(flight),
            attempts=flight.attempts,
        )

    def _sort(
        self,
        flight: Flight,
        result: SubmitResult,
        outcome: Submitted,
        external_ids: dict[str, str],
    ) -> None:
        flight.underway = isinstance(result, Underway)
        if isinstance(result, Sent):
            flight.workload = None
            if result.external_id != flight.launch.external_id:
                flight.launch = flight.launch._replace(external_id=result.external_id)
                external_ids[flight.token] = result.external_id
            outcome.sent.add(flight.token)
        elif isinstance(result, Rejected):
            outcome.rejected[flight.token] = storable(result.reason)
            outcome.gone.add(flight.token)
        elif isinstance(result, Underway):
            outcome.underway.add(flight.token)
        else:
            self._postpone(flight, result)
            outcome.waiting.add(flight.token)

    def _postpone(self, flight: Flight, result: Postponed) -> None:
        if not result.tried:
            flight.not_before = self.clock() + (result.retry_after or 0.0)
            return
        flight.attempts += 1
        wait = back_off(flight.attempts) if result.retry_after is None else spread(result.retry_after)
        flight.not_before = self.clock() + wait
        level = logging.WARNING if flight.attempts == 1 else logging.INFO
        log.log(
            level,
            "Launch %s waits %.1f s before it is sent to %s again (try %d): %s",
            flight.token,
            wait,
            flight.launch.backend.value,
            flight.attempts,
            result.reason,
        )

    def _note(self, external_ids: Mapping[str, str], rejected: Mapping[str, str]) -> None:
        # Kept until it is written: no backend tells a second time where an artefact is.
        self._unnoted.update(external_ids)
        if not self._unnoted and not rejected:
            return
        try:
            with self.session() as session:
                connection = session.connection()
                store.note_external_ids(connection, self._unnoted)
                for token, reason in rejected.items():
                    store.record(
                        connection,
                        LaunchEvent.DROP,
                        (token,),
                        now=self.utcnow(),
                        reason=reason,
                        where=(LaunchRow.scheduler_job_id == self.owner,),
                    )
        except DATABASE_ERRORS as exc:
            log.warning("What became of a batch is noted later: the database failed (%s)", type(exc).__name__)
            return
        self._unnoted.clear()


def _priority(flight: Flight) -> int:
    ti = getattr(flight.workload, "ti", None)
    return CALLBACK_PRIORITY if ti is None else ti.priority_weight


def spread(seconds: float) -> float:
    """Return a wait that a service asked for, or a little more: not all are to come back at once."""
    return seconds * random.uniform(1.0, 1.25)  # noqa: S311


def back_off(attempts: int) -> float:
    """Return seconds to wait after ``attempts`` sends that failed: doubling, with jitter."""
    return float(min(BACK_OFF_LIMIT, 2.0 ** min(attempts - 1, 6)) * random.uniform(0.75, 1.25))  # noqa: S311
