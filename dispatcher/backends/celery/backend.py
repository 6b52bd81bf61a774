# SPDX-License-Identifier: Apache-2.0
"""The Celery backend: one message for each launch, under its token as the task id."""

from __future__ import annotations

import logging
import time
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from dispatcher.backends.base import (
    Artefact,
    Findings,
    Observation,
    Outcome,
    Postponed,
    Sent,
    Stray,
    Submission,
    SubmitResult,
)
from dispatcher.backends.celery.app import create_app, describe, operation_timeout
from dispatcher.backends.celery.batch import CHUNK, Batch
from dispatcher.backends.celery.chores import Chore, Outage
from dispatcher.backends.celery.claimants import Claimants
from dispatcher.backends.celery.lane import Lane, Patience, came_back
from dispatcher.backends.celery.lookout import Lookout
from dispatcher.backends.celery.watched import Watched
from dispatcher.domain.errors import ConfigurationError
from dispatcher.domain.lifecycle import BackendName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from celery import Celery

    from dispatcher.backends.celery.evidence import Evidence
    from dispatcher.backends.celery.publisher import Publisher
    from dispatcher.backends.celery.results import Results
    from dispatcher.settings import Settings

log = logging.getLogger(__name__)

SOCKET_SECONDS = 5.0
"""How long a socket operation may take at least, where the configuration names no time-out."""

GIVE_UP_SECONDS = 60.0
"""After how long a call that hangs is left to itself and everything of Celery is made anew."""


@dataclass(frozen=True, slots=True)
class Services:
    """What is made of the configuration when it is first needed.

    :param app: Celery's app
    :param publisher: used in the broker's lane only
    :param results: used in the results' lane only
    """

    app: Celery
    publisher: Publisher
    results: Results


class CeleryBackend:
    """Sends launches to Celery workers; see ``Backend`` for the contract.

    The broker and the result back end have a thread each, for a call that hangs must not hold up the
    scheduler: no method waits longer than ``[celery] operation_timeout``, and what comes back later is taken
    up by a later call. Nothing waits behind a call that hangs, and reading waits for no service that is away.

    :param conf: the executor's team-aware configuration
    :param settings: the ``[dispatcher]`` section; all else is taken from ``[celery]``
    :param team_name: the team of the executor, for logs
    """

    def __init__(self, conf: Any, settings: Settings, *, team_name: str | None = None) -> None:
        self._conf = conf
        self._made: Services | None = None
        self._timeout = 0.0
        self._watched = Watched()
        self._reading: Future[list[Observation]] | None = None
        self._reading_patience = Patience()
        suffix = f" of team {team_name}" if team_name else ""
        self._broker_outage = Outage(f"The Celery broker{suffix}")
        self._results_outage = Outage(f"The Celery result back end{suffix}")
        self._broker = Lane(f"celery-broker{suffix}", GIVE_UP_SECONDS, self._renew)
        self._results = Lane(f"celery-results{suffix}", GIVE_UP_SECONDS, self._renew)
        self._search = Lane(f"celery-search{suffix}", GIVE_UP_SECONDS, self._renew)
        self._lookout = Lookout(self._search, self._gather, suffix)
        self._claimants = Claimants(self._search, self._held_by_workers, settings.heartbeat_timeout)
        self._revoke = Chore(self._broker, self._revoke_now, self._broker_outage)
        self._forget = Chore(self._results, self._forget_now, self._results_outage)

    @property
    def name(self) -> BackendName:
        """Celery."""
        return BackendName.CELERY

    def start(self, scheduler_job_id: str) -> None:  # noqa: ARG002
        """Import Celery and make the app, so that the first heartbeat need not; touches no service.

        :param scheduler_job_id: not needed here
        """
        try:
            self._services()
        except ConfigurationError as exc:
            log.debug("Not ready to send to Celery: %s", exc)  # problem() tells people

    def problem(self) -> str | None:
        """Say what is wrong with the configuration or the broker, in one line; None when all is well."""
        try:
            services = self._services()
        except ConfigurationError as exc:
            return str(exc)
        check = self._broker.start(services.publisher.check)
        if check is None or not came_back(check, self._timeout):
            reason = f"no answer within {self._timeout:g} s"
        elif (error := check.exception()) is not None:
            reason = describe(error)
        else:
            return None
        address = services.app.connection_for_write().as_uri()
        return (
            f"The Celery broker {address} cannot be used ({reason}): start it or correct [celery] broker_url"
        )

    def submit(self, batch: Iterable[Submission]) -> Mapping[str, SubmitResult]:
        """Send messages, highest priority first, for as long as the operation time-out allows.

        :param batch: what to send
        :returns: one result for each token that was read
        """
        try:
            services = self._services()
        except ConfigurationError as exc:
            self._broker_outage.begin(str(exc))
            return {submission.token: Postponed(str(exc)) for submission in batch}
        began = time.monotonic()
        work = Batch(self._timeout)
        sending = self._broker.start(lambda: services.publisher.send(work))
        # Half of the time at most for signatures, which RSA makes dear.
        reading = takewhile(lambda _: time.monotonic() - began < self._timeout / 2, batch)
        while read := list(islice(reading, CHUNK)):
            work.add(read)
        work.complete()
        answered = sending is not None and came_back(sending, self._timeout - (time.monotonic() - began))
        if sending is None:
            work.postpone_rest(Postponed("the broker has not answered an earlier call yet"))
        elif answered and (error := sending.exception()) is not None:
            work.postpone_rest(Postponed(describe(error)))
        results = work.close(answered=answered)
        self._watched.add(token for token, result in results.items() if _may_be_there(result))
        self._note_outage(results.values())
        return results

    def results(self) -> Mapping[str, Outcome]:
        """Return nothing: every answer is in the result of ``submit``."""
        return {}

    def _note_outage(self, results: Collection[SubmitResult]) -> None:
        if any(isinstance(result, Sent) for result in results):
            self._broker_outage.end()
            return
        for result in results:
            if isinstance(result, Postponed) and result.retry_after is None:
                self._broker_outage.begin(result.reason)

    def watch(self, artefacts: Collection[Artefact]) -> None:
        """Look for the results of these artefacts too.

        :param artefacts: sent by another scheduler
        """
        self._watched.add(artefact.token for artefact in artefacts)

    def observe(self) -> Sequence[Observation]:
        """Return the endings that are stored.

        A result back end that is away is named in the log once, and nothing follows from it.
        """
        self._broker.expire()
        self._results.expire()
        self._revoke.push(0)
        self._forget.push(0)
        patience = 0.0
        if self._reading is None:
            self._reading = self._start_reading()
            patience = 0.0 if self._results_outage.current else self._timeout
        if self._reading is None or not self._reading_patience.wait(self._reading, patience):
            return []
        reading, self._reading = self._reading, None
        error = reading.exception()
        if error is not None:
            self._results_outage.begin(describe(error))
            return []
        self._results_outage.end()
        return [ending for ending in reading.result() if ending.token in self._watched]

    def _start_reading(self) -> Future[list[Observation]] | None:
        if not self._watched:
            return None
        try:
            services = self._services()
        except ConfigurationError as exc:
            self._results_outage.begin(str(exc))
            return None
        changes = self._watched.changes(services.results)
        reading = self._results.start(lambda: services.results.follow(changes))
        if reading is not None:
            self._watched.told(services.results)
        return reading

    def why_waiting(self, token: str) -> str | None:
        """Return that a message could not be sent, or that nobody consumes its queue, where that is known.

        :param token: the launch token
        """
        if token not in self._watched and (away := self._broker_outage.text):
            return away
        return self._lookout.why_waiting(token)

    def look_for(self, waiting: Mapping[str, str]) -> Findings:
        """Return which messages are gone, and which queues nobody consumes, as far as that is certain by now.

        :param waiting: launches that nobody has claimed, and their queues
        """
        return self._lookout.findings(waiting)

    def abandoned(self, claimed: Collection[str]) -> Mapping[str, str]:
        """Return what no worker has run for as long as a task's heartbeat may stand still.

        :param claimed: tokens of launches that were claimed and have told no result
        """
        return self._claimants.abandoned(claimed)

    def revoke(self, artefacts: Collection[Artefact]) -> None:
        """Have workers drop the messages that they have not started, or are yet to get.

        What runs is stopped by the fence, at its next heartbeat. The fence also refuses what a restarted
        worker forgot was revoked; a broker that is away is told when it is back.

        :param artefacts: what to stop
        """
        self._revoke.add(artefact.token for artefact in artefacts)
        self._revoke.push(self._timeout)

    def remove(self, artefacts: Collection[Artefact]) -> None:
        """Delete the stored results of these artefacts, now or when the result back end is back.

        :param artefacts: what ended
        """
        tokens = {artefact.token for artefact in artefacts}
        self._watched.drop(tokens)
        self._forget.add(tokens)
        self._forget.push(self._timeout)

    def release(self, tokens: Collection[str]) -> None:
        """Look for these results no more, and leave them where they are.

        :param tokens: sent, and dealt with by another scheduler
        """
        self._watched.drop(tokens)

    def strays(self) -> Sequence[Stray]:
        """Return nothing: messages are consumed, and stored results expire."""
        return ()

    def stop(self) -> None:
        """End both threads and close their connections."""
        made, self._made = self._made, None
        if made is not None:
            closing = (self._broker.start(made.publisher.close), self._results.start(made.results.close))
            wait([future for future in closing if future is not None], timeout=self._timeout)
        for lane in (self._broker, self._results, self._search):
            lane.close()

    def _revoke_now(self, tokens: list[str]) -> None:
        self._services().publisher.revoke(tokens)

    def _forget_now(self, tokens: list[str]) -> None:
        self._services().results.forget(tokens)

    def _gather(self, waiting: Mapping[str, str]) -> Evidence | None:
        from dispatcher.backends.celery.evidence import gather

        return gather(self._services().app, waiting)

    def _held_by_workers(self, tokens: Collection[str]) -> frozenset[str] | None:
        from dispatcher.backends.celery.evidence import held_by_workers

        return held_by_workers(self._services().app, tokens)

    def _services(self) -> Services:
        if self._made is None:
            # Imported late: the API server makes an executor to read logs, and needs no Celery for it.
            from dispatcher.backends.celery.publisher import Publisher
            from dispatcher.backends.celery.results import Results

            self._timeout = operation_timeout(self._conf)
            app, open_results = create_app(self._conf, max(SOCKET_SECONDS, self._timeout))
            self._made = Services(app, Publisher(app), Results(open_results))
        return self._made

    def _renew(self) -> None:
        """Leave everything to the thread that hangs; what is needed next is made anew."""
        self._made = None


def _may_be_there(result: SubmitResult) -> bool:
    return isinstance(result, Sent) or (isinstance(result, Postponed) and result.ambiguous)
