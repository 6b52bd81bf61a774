# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher asks of a backend.

A backend sends artefacts (Celery messages, pods), tells how they ended, and takes them away. It decides
nothing about launches and writes nothing to the database. An artefact is known by its token; connection
tests, which have no launch, are known by their own UUID.

The contract, held for every implementation by ``tests/contract/test_backends.py``:

* ``submit`` may be called again with a token that was already sent: it never makes a second artefact where
  the backend can tell, and where it cannot (a Celery queue), the second one is harmless because only one
  claim can win. Its answers are in the result, one for each token; it raises nothing.
* Where sending takes its time, ``submit`` hands over and answers ``Underway``; ``results`` tells what became
  of it, once, and waits for nothing. A token that is underway is not sent a second time by another
  ``submit``: the answer is ``Underway`` again. What is underway can be revoked and removed like anything
  else, and is not told of then: if it has not begun it never will, and otherwise it is taken away once it is
  there.
* A send that has not begun ``BEGIN_SECONDS`` after ``submit`` never does. It comes back ``Postponed`` and not
  tried, because the check that allowed it has grown old (rule 4).
* ``observe`` tells each ending at least once after it happened, for artefacts sent or watched by this
  object, until ``remove`` or ``release`` was called for the token. It never concludes anything from a missing
  result.
* Where several artefacts carry one token, each of their endings is told, and is marked as outlived as long as
  another of them has not ended. ``revoke`` and ``remove`` take all of them away, and no other token's.
* ``look_for`` names an artefact as lost only if the backend shows that nothing of it is there: the same token
  may then be sent again. A backend that tells of lost artefacts by ``observe`` names none here.
* ``abandoned`` names what was claimed only if the backend shows, and goes on showing for minutes, that
  nothing runs it.
* ``revoke`` and ``remove`` are idempotent; an artefact that is not there is no error.
* ``release`` takes nothing away and tells no more: the artefact is another scheduler's, and a stray here.
* ``strays`` names, as long as they are there, artefacts of this deployment and team that this object neither
  tells of nor was asked to take away: another scheduler's, and what a dead one left. It takes nothing away
  itself: whether anybody waits for them only the ledger knows. A backend whose artefacts do not outlast their
  use (stored results expire) names none.
* No method blocks the scheduler loop for longer than the backend's operation time-out, in all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from dispatcher.domain.lifecycle import BackendName
    from dispatcher.domain.workload import WorkloadKind

BEGIN_SECONDS = 5.0
"""How old the check of a launch may be when its send begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One artefact to be sent.

    :param token: the launch token, or the UUID of a connection test
    :param kind: what it runs
    :param queue: the queue of the route
    :param payload: the workload as JSON, with its signed JWT: a secret
    :param workload: the workload itself (Airflow's type), for what only one backend needs of it
    :param priority: Airflow's priority weight; higher goes first
    :param attempts: sends of it that failed before
    """

    token: str
    kind: WorkloadKind
    queue: str
    payload: str = field(repr=False)
    workload: Any = field(repr=False)
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int = -1
    try_number: int | None = None
    logical_date: datetime | None = None
    executor_config: Any = field(default=None, repr=False)
    priority: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Artefact:
    """What is known of an artefact that was sent, perhaps by another scheduler.

    :param external_id: Celery task id, or namespace/pod; None if the send was never confirmed
    """

    token: str
    kind: WorkloadKind
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """It is there: newly made, or found to be there already.

    :param external_id: Celery task id, or namespace/pod
    """

    external_id: str


@dataclass(frozen=True, slots=True)
class Underway:
    """It is being sent; ``results`` tells what became of it."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """It is not known to be there and may be sent again.

    :param reason: one line for people
    :param retry_after: seconds that the service asked for, or during which another try is no use
    :param ambiguous: it may be there: the answer never came
    :param tried: False if the send never began: nothing failed, and it may be sent again at once, or
        after ``retry_after``
    """

    reason: str
    retry_after: float | None = None
    ambiguous: bool = False
    tried: bool = True


@dataclass(frozen=True, slots=True)
class Rejected:
    """It will never be there: the workload itself is at fault.

    :param reason: one line for people, and for the log of the task
    """

    reason: str


Outcome = Sent | Postponed | Rejected
"""What became of a send."""

SubmitResult = Outcome | Underway


@dataclass(frozen=True, slots=True)
class Observation:
    """An artefact that ended, or that has not started and is given up.

    :param token: which one
    :param ok: it ended well (exit code 0, a stored success)
    :param reason: for people; None when it ended well
    :param hostname: where it ran, if the backend knows (for a pod its name)
    :param claimant: the claimant that this ending belongs to, if the artefact told; of a pod, how the names
        of all claimants begin that ran in it
    :param gone: positive evidence that the backend has no trace of it any more, though nobody saw it end
    :param by_infrastructure: not its own process ended it: it was ended from outside, or kept from starting,
        so that another artefact of the same subject may fare better (rule 6)
    :param given_up: it has not ended: it does not start, and is not waited for any longer. It may start all
        the same, so this says nothing once its launch is claimed
    :param outlived: another artefact of the same token has not ended
    :param anonymous: it may be the end of any of several executions of the artefact (a message is delivered
        again), so that it says nothing of the one that holds the claim
    """

    token: str
    ok: bool
    reason: str | None = None
    hostname: str | None = None
    claimant: str | None = None
    gone: bool = False
    by_infrastructure: bool = False
    given_up: bool = False
    outlived: bool = False
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """What a backend found out about artefacts that have waited for long.

    :param lost: tokens of artefacts of which, by positive evidence, nothing is there any more
    :param stranded: why nothing takes up an artefact that is there, in one line, by token
    """

    lost: frozenset[str] = frozenset()
    stranded: Mapping[str, str] = field(default_factory=dict)


class Progress(StrEnum):
    """How far an artefact has come."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Stray:
    """An artefact that is there although this backend was not asked to tell of it.

    :param artefact: which one
    :param progress: how far it has come
    :param sender: job id of the scheduler that made it, if the artefact says so
    """

    artefact: Artefact
    progress: Progress
    sender: str | None = None


class Backend(Protocol):
    """A place where launches are sent; see the module's text for the contract."""

    @property
    def name(self) -> BackendName:
        """Which backend this is."""

    def start(self, scheduler_job_id: str) -> None:
        """Get ready to send and to observe; touches no service that may be away.

        :param scheduler_job_id: the job id of the scheduler, for labels
        """

    def problem(self) -> str | None:
        """Return, in one line, what is missing and what to do about it; None when all is well."""

    def submit(self, batch: Iterable[Submission]) -> Mapping[str, SubmitResult]:
        """Send artefacts, in their order as far as they are sent one after the other.

        :param batch: what to send; may be made while it is read, so that the first ones are on their way
            before the last ones are made. Making takes time, for signatures above all, and is part of what
            ``submit`` may take: what is not read then is not sent
        :returns: one result for each token that was read
        """

    def results(self) -> Mapping[str, Outcome]:
        """Return what has become of sends that were underway, each once; waits for nothing."""

    def watch(self, artefacts: Collection[Artefact]) -> None:
        """Take up artefacts that another scheduler sent."""

    def observe(self) -> Sequence[Observation]:
        """Return the endings that are known now."""

    def why_waiting(self, token: str) -> str | None:
        """Return, in one line, why an artefact that was sent has not started; None where that is not known.

        Waits for no service.

        :param token: which one
        """

    def look_for(self, waiting: Mapping[str, str]) -> Findings:
        """Return what is certain by now of artefacts that wait; looking goes on in the background.

        :param waiting: the queues of launches that were sent long ago and that nobody claimed, by token
        """

    def abandoned(self, claimed: Collection[str]) -> Mapping[str, str]:
        """Return of which claimed launches nothing runs any more, by token, and what shows it, in one line.

        For callbacks, which have no heartbeat. It is asked every few seconds, looking goes on in the
        background, and nothing is concluded from a service that does not answer.

        :param claimed: tokens of launches that were claimed a while ago and have told no result
        """

    def revoke(self, artefacts: Collection[Artefact]) -> None:
        """Stop artefacts, whether they have started or not."""

    def remove(self, artefacts: Collection[Artefact]) -> None:
        """Take away what ended artefacts left (pods, Secrets, stored results), as the settings say."""

    def release(self, tokens: Collection[str]) -> None:
        """Tell no more of artefacts that others deal with; what is there stays."""

    def strays(self) -> Sequence[Stray]:
        """Return artefacts that nobody waits for here, as far as known; the first call begins to look."""

    def stop(self) -> None:
        """End every thread and connection of this object."""
