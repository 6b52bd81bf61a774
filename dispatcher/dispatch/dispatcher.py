# SPDX-License-Identifier: Apache-2.0
"""The dispatcher: ties issuing, submitting, observing and reporting together for one executor instance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from dispatcher.backends.base import Backend, Observation
from dispatcher.compat import workload_key
from dispatcher.dispatch.connection_tests import ConnectionTests
from dispatcher.dispatch.flights import Flight, FlightTable
from dispatcher.dispatch.heartbeat import Heartbeat
from dispatcher.dispatch.issue import Issuer
from dispatcher.dispatch.observe import Observed, Observer, Unstarted
from dispatcher.dispatch.relaunch import Relauncher
from dispatcher.dispatch.reports import Event, Report, ReportTable, record_told, told_ending
from dispatcher.dispatch.settling import Settler
from dispatcher.dispatch.signing import Signer
from dispatcher.dispatch.submit import Submitter
from dispatcher.dispatch.sweep import Sweeper, Swept
from dispatcher.dispatch.upkeep import Upkeep
from dispatcher.dispatch.uptake import Uptake
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchKind
from dispatcher.domain.routing import Router
from dispatcher.ledger import store
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.ledger.subjects import OwnExecutors
from dispatcher.recovery import rebuild_workloads

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Facts:
    """What one heartbeat read and wrote in its transaction.

    :param told: ends that the scheduler asked for, written
    :param observed: what the backends showed
    :param swept: what differs between memory and database
    """

    told: Mapping[str, Event]
    observed: Observed
    swept: Swept
    workloads: Mapping[str, Any] = field(default_factory=dict)
    unsettled: list[Launch] = field(default_factory=list)


class Dispatcher:
    """Everything that one executor instance does with launches.

    :param owner: job id of this scheduler
    :param backends: by name
    :param router: chooses routes
    :param signer: signs workloads at the send
    :param own: the names of this executor; None takes every task instance as ours
    :param team: the team of this executor
    :param ids_may_be_stale: see ``Issuer``
    :param unfenced_callbacks: see ``Observer``
    :param heartbeat_timeout: seconds that a running task's heartbeat may stand still
    :param relaunches: how often what did not start is launched again, by kind
    :param callback_patience: seconds that a callback may wait for a worker that claims it
    :param retention: how long launches are kept after their end
    :param session: makes a session of our own, which it commits and closes (rule 16)
    :param clock: monotonic seconds
    :param utcnow: the present
    """

    def __init__(  # noqa: PLR0913
        self,
        *,
        owner: str,
        backends: Mapping[BackendName, Backend],
        router: Router,
        signer: Signer,
        own: OwnExecutors | None,
        team: str | None,
        ids_may_be_stale: bool,
        unfenced_callbacks: bool,
        heartbeat_timeout: float,
        relaunches: Mapping[LaunchKind, int],
        callback_patience: float,
        retention: timedelta,
        session: Callable[[], Any],
        clock: Callable[[], float],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._owner = owner
        self._backends = backends
        self._team = team
        self._session = session
        self._clock = clock
        self._utcnow = utcnow
        self._table = FlightTable()
        self._reports = ReportTable(owner, own, heartbeat_timeout)
        self._uptake = Uptake(
            table=self._table,
            reports=self._reports,
            backends=backends,
            utcnow=utcnow,
            patience=heartbeat_timeout,
        )
        self._issuer = Issuer(router=router, owner=owner, team=team, ids_may_be_stale=ids_may_be_stale)
        self._submitter = Submitter(
            backends=backends, signer=signer, owner=owner, session=session, clock=clock, utcnow=utcnow
        )
        self._observer = Observer(
            owner=owner, reports=self._reports, own=own, unfenced_callbacks=unfenced_callbacks
        )
        self._relauncher = Relauncher(
            owner=owner, observer=self._observer, limits=relaunches, session=session, utcnow=utcnow
        )
        self._sweeper = Sweeper(
            owner=owner,
            team=team,
            clock=clock,
            callback_patience=timedelta(seconds=callback_patience),
            why_waiting=lambda launch: self._backends[launch.backend].why_waiting(launch.token),
        )
        self._upkeep = Upkeep(
            owner=owner,
            team=team,
            own=own,
            backends=backends,
            callback_patience=callback_patience,
            retention=retention,
            session=session,
            clock=clock,
            utcnow=utcnow,
        )
        self._connection_tests = ConnectionTests(backends, router, signer, team)
        self._settler = Settler(
            backends=backends,
            reports=self._reports,
            connection_tests=self._connection_tests,
            owner=owner,
            session=session,
            utcnow=utcnow,
            patience=heartbeat_timeout,
        )
        self._told: dict[str, Event] = {}

    # Issuing

    def issue(self, workload: Any, session: Session) -> None:
        """Issue a launch in the scheduler's transaction.

        :param workload: a task or a callback
        :param session: the scheduler's session
        """
        launch = self._issuer.issue(workload, session, self._utcnow())
        self._table.add(Flight(launch=launch, key=workload_key(workload), workload=workload))

    # Submitting

    def knows(self, key: Any) -> bool:
        """Whether a launch is in memory for one of Airflow's keys."""
        return self._table.current(key) is not None

    def is_due(self, key: Any) -> bool:
        """Whether a queued workload may be sent now; one whose last send did not succeed waits for a while.

        :param key: Airflow's key
        """
        flight = self._table.current(key)
        return flight is None or flight.not_before <= self._clock()

    def submit(self, keys: Collection[Any]) -> Heartbeat:
        """Send the launches of ``keys`` that may be sent.

        :param keys: Airflow's keys of queued tasks and callbacks
        """
        flights = [flight for key in keys if (flight := self._table.current(key)) and flight.workload]
        outcome = self._submitter.submit(flights)
        # One that a worker claimed meanwhile is still ours: the sweep finds it and watches it.
        self._sweeper.ask(outcome.gone)
        step = Heartbeat(freed={key for key in keys if self._table.current(key) is None})
        for flight in flights:
            if flight.token in outcome.sent or flight.token in outcome.underway:
                step.running.add(flight.key)
            elif flight.token in outcome.gone:
                if reason := outcome.rejected.get(flight.token):
                    step.note(flight.key, "launch rejected", reason)
                self._uptake.free(flight.token, step)
        for launch in outcome.superseded:
            self._uptake.free(launch.token, step)
        return step

    def submit_connection_tests(self, tests: Sequence[Any]) -> Heartbeat:
        """Send connection tests, once each.

        :param tests: Airflow's workloads
        """
        return self._connection_tests.submit(tests)

    def forget_connection_test(self, token: str) -> None:
        """Stop waiting for a connection test that Airflow gave up; its artefact goes in the next heartbeat.

        :param token: the UUID of the test
        """
        self._connection_tests.give_up(token)

    # Observing

    def sync(self) -> Heartbeat:
        """Observe the backends, write what ended, settle what Airflow has heard, sweep now and then.

        Memory changes only after the commit, so that a database error leaves everything for the next time.
        """
        step = Heartbeat()
        self._collect(step)
        observed = {name: list(backend.observe()) for name, backend in self._backends.items()}
        done = self._connection_tests.end(observed, step)
        try:
            with self._session() as session:
                facts = self._facts(session, observed)
        except DATABASE_ERRORS as exc:
            log.warning("Nothing is observed in this heartbeat: the database failed (%s)", type(exc).__name__)
            return step
        self._apply(facts, step)
        self._restart(facts.observed.unstarted, step)
        stray = done | {token for token in facts.observed.stray if token not in self._reports}
        # Last, in a transaction of its own: what was read above still counts its launches as unsettled.
        self._settler.settle(stray, facts.observed.elsewhere, observed)
        self._upkeep.keep(self._table, step, sweeps=facts.swept.inherits)
        return step

    def _collect(self, step: Heartbeat) -> None:
        """Take in what became of sends that were underway; what is to be sent again is queued again."""
        results = {
            token: result
            for backend in self._backends.values()
            for token, result in backend.results().items()
        }
        self._connection_tests.collect(results, step)
        outcome = self._submitter.collect(self._table, results)
        for token in outcome.waiting:
            flight = self._table.get(token)
            if flight is not None and self._table.is_current(flight):
                step.freed.add(flight.key)
                step.queued[flight.key] = flight.workload
        for token, reason in outcome.rejected.items():
            flight = self._table.get(token)
            if flight is not None:
                step.note(flight.key, "launch rejected", reason)
                self._uptake.free(token, step)

    def _facts(self, session: Session, observed: Mapping[BackendName, list[Observation]]) -> _Facts:
        connection = session.connection()
        now = self._utcnow()
        told = dict(self._told)
        record_told(connection, told, self._owner, now)
        shown = [one for some in observed.values() for one in some]
        ends = self._observer.end(connection, shown, now)
        facts = _Facts(told, ends, self._sweeper.sweep(connection, self._table, now))
        unclaimed = [launch for launch in facts.swept.unknown if launch.unclaimed]
        facts.workloads = rebuild_workloads(session, unclaimed)
        self._sweeper.drop_unsendable(connection, facts.swept, facts.workloads, now)
        facts.unsettled = store.unsettled_of_owner(connection, self._owner, self._team)
        return facts

    def _apply(self, facts: _Facts, step: Heartbeat) -> None:
        for token in facts.told:
            self._told.pop(token, None)
        self._uptake.take_up_ends(facts.observed.ended, step)
        self._uptake.forget(facts.swept.forget, step)
        self._uptake.take_up_open(facts.swept.unknown, facts.workloads, step)
        self._sweeper.taken_in(facts.swept)
        self._uptake.take_up_unsettled(facts.unsettled, facts.observed.stray, step)

    def _restart(self, unstarted: Sequence[Unstarted], step: Heartbeat) -> None:
        restarted = self._relauncher.restart(unstarted)
        self._uptake.take_up_ends(restarted.ended, step)
        for one in restarted.relaunched:
            key = self._table.key_of(one.old)
            step.note(key, "launched again", one.why)
            self._uptake.free(one.old.token, step)
            if one.workload is None:
                # The sweep finds the new launch, and drops it if there is still no workload for it.
                self._sweeper.ask((one.new.token,))
                continue
            not_before = self._clock() + one.pause
            self._table.add(Flight(launch=one.new, key=key, workload=one.workload, not_before=not_before))
            step.queued[key] = one.workload

    # Reporting

    def events(self, dag_ids: Collection[str] | None = None) -> dict[Any, Event]:
        """Return the events that Airflow has to hear now; called when it drains the event buffer.

        :param dag_ids: the DAGs whose tasks to tell of, callbacks aside; None for all
        """
        if not self._reports.pending:
            return {}
        try:
            with self._session() as session:
                return self._reports.due(session.connection(), self._utcnow(), dag_ids)
        except DATABASE_ERRORS as exc:
            log.warning("No event is reported in this loop: the database failed (%s)", type(exc).__name__)
            return {}

    def told(self, key: Any, state: Any, info: Any) -> bool:
        """Take up what the scheduler itself says of a task: a heartbeat that timed out, for instance.

        It frees the slot at once; what is reported obeys rule 13.

        :param key: Airflow's key
        :param state: the state the scheduler wants
        :param info: its reason
        :returns: False if there is no launch of ours for ``key``: the event passes through
        """
        flight = self._table.current(key)
        if flight is None:
            return False
        self._told[flight.token] = (state, info)
        self._reports.add(Report(flight.launch, key, told_ending(info)))
        self._table.forget(flight.token)
        return True

    # Revoking

    def revoked(self, token: str) -> None:
        """Forget a launch that the scheduler revoked; its artefact goes after the commit (rule 17)."""
        self._table.forget(token)

    def why_waiting(self, token: str | None) -> str | None:
        """Return why the artefact of a launch has not started, as far as its backend knows.

        :param token: the launch token
        """
        flight = self._table.get(token or "")
        return None if flight is None else self._backends[flight.launch.backend].why_waiting(flight.token)

    def sweep_soon(self) -> None:
        """Let the next heartbeat begin to compare memory with the database."""
        self._sweeper.soon()

    def adopt_soon(self, tokens: Collection[str] = ()) -> None:
        """Let the next heartbeat take up what was taken over, and look for what else dead schedulers left.

        :param tokens: the launches that were taken over, as far as they are known
        """
        self._sweeper.ask(tokens)
        self.sweep_soon()
        self._upkeep.soon()

    def stop(self) -> None:
        """End the backends' threads and connections; launches stay for the next scheduler."""
        for backend in self._backends.values():
            backend.stop()

    def in_flight(self) -> list[Flight]:
        """Return all flights, for dumps."""
        return list(self._table)
