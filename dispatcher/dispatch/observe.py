# SPDX-License-Identifier: Apache-2.0
"""Observing: from what a backend shows of an artefact to the end of its launch in the ledger."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from dispatcher.backends.base import Observation
from dispatcher.dispatch.reports import ReportTable
from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import BackendName, LaunchEvent, LaunchKind, target
from dispatcher.domain.protocol import TASK_FINISHED, Ending, ReportVerdict
from dispatcher.domain.relaunching import may_relaunch
from dispatcher.domain.text import storable
from dispatcher.ledger import store, subjects
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.ledger.models import LaunchRow

log = logging.getLogger(__name__)

UNFENCED = "process:unfenced"
"""The claimant of a callback that a worker without the guard ran."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A launch whose end was written.

    :param launch: its ledger row, after the write
    :param ending: how its artefact ended
    :param told: Airflow is to hear of it: it is not the end of something old or known
    """

    launch: Launch
    ending: Ending
    told: bool


@dataclass(frozen=True, slots=True)
class End:
    """The end of a launch that is to be written.

    :param launch: the ledger row as it was judged
    :param event: what the end is to the launch
    :param ending: how its artefact ended
    :param told: see ``Ended``
    """

    launch: Launch
    event: LaunchEvent
    ending: Ending
    told: bool

    def written(self, now: datetime) -> Ended:
        """Return what it is once it is written."""
        reason = self.ending.reason
        after = self.launch._replace(state=target(self.event), ended_at=now, end_reason=reason)
        return Ended(after, self.ending, self.told)


@dataclass(frozen=True, slots=True)
class Unstarted:
    """A launch whose artefact ended, or is given up, before any claim: it may be launched again (rule 6).

    :param launch: its ledger row as it was judged; nothing is written yet
    :param subject: its subject as read
    :param observation: what the backend shows
    :param ending: what that says of the launch
    """

    launch: Launch
    subject: Subject
    observation: Observation
    ending: Ending


@dataclass(frozen=True, slots=True)
class Observed:
    """What became of the launches that were observed.

    :param ended: their end was written
    :param unstarted: to be launched again, or else to be ended
    :param stray: the tokens of artefacts that no open launch waits for any more
    :param elsewhere: the tokens of launches that another scheduler took over and has dealt with
    """

    ended: list[Ended]
    unstarted: list[Unstarted]
    stray: set[str]
    elsewhere: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Writes the ends of launches as compare-and-sets on the state they were judged in.

    :param owner: job id of this scheduler; what belongs to another one is left to it
    :param reports: decides whether an end counts (rule 13)
    :param own: the names of this executor
    :param unfenced_callbacks: a Celery worker without the guard may run callbacks (``fence=presented``)
    """

    owner: str
    reports: ReportTable
    own: subjects.OwnExecutors | None
    unfenced_callbacks: bool
    _named: set[str] = field(default_factory=set)
    """Launches whose end could not be taken up, and was named in the log."""

    def end(self, connection: Connection, observations: Collection[Observation], now: datetime) -> Observed:
        """Judge and write what was observed.

        :param connection: a transaction of our own
        :param observations: endings, by artefact
        :param now: the present
        """
        seen: dict[str, list[Observation]] = {}
        for observation in observations:
            seen.setdefault(observation.token, []).append(observation)
        launches = store.by_tokens(connection, seen)
        found = subjects.subjects_of(connection, list(launches.values()), self.own)
        observed = Observed([], [], set(seen) - set(launches))
        ends: list[End] = []
        for token, launch in launches.items():
            if launch.scheduler_job_id != self.owner:
                if launch.settled_at is not None:
                    observed.elsewhere.add(token)
                continue
            if not launch.open:
                observed.stray.add(token)
                continue
            one = self._judge_soundly(connection, launch, found.get(token), seen[token], now)
            if isinstance(one, End):
                ends.append(one)
            elif one is not None:
                observed.unstarted.append(one)
        observed.ended.extend(self.write_ends(connection, ends, now))
        return observed

    def _judge_soundly(
        self,
        connection: Connection,
        launch: Launch,
        subject: Subject | None,
        observations: Sequence[Observation],
        now: datetime,
    ) -> End | Unstarted | None:
        """Judge one launch; whatever is wrong with what was observed of it must not hold up the others."""
        try:
            decisive = decisive_of(launch, observations)
            return None if decisive is None else self._judge(connection, launch, subject, decisive, now)
        except DATABASE_ERRORS:
            raise
        except Exception:
            if launch.token not in self._named:
                self._named.add(launch.token)
                log.exception("The end of launch %s cannot be taken up; it is tried again", launch.token)
            return None

    def _judge(
        self,
        connection: Connection,
        launch: Launch,
        subject: Subject | None,
        observation: Observation,
        now: datetime,
    ) -> End | Unstarted | None:
        if lost_the_claim(launch, observation) or (observation.given_up and not launch.unclaimed):
            return None
        if self._ran_without_fence(launch, observation):
            claimed = self._claim_unfenced(connection, launch, now)
            if claimed is None:
                return None
            launch = claimed
        ending = ending_from(launch, observation)
        verdict = self.reports.judge(launch, subject, ending, now)
        if verdict is ReportVerdict.WAIT:
            return None
        restartable = observation.by_infrastructure and may_relaunch(launch, subject)
        if subject is not None and verdict is ReportVerdict.EMIT and restartable:
            return Unstarted(launch, subject, observation, ending)
        event = event_for(launch, subject, ending, observation, verdict)
        if verdict is ReportVerdict.SETTLE and is_of_another(launch, observation):
            event, reason = event_after_leaving(launch, subject)
            ending = replace(ending, reason=reason)
        return End(launch, event, ending, told=verdict is ReportVerdict.EMIT)

    def write_ends(self, connection: Connection, ends: Sequence[End], now: datetime) -> list[Ended]:
        """Write the ends of launches that are still in the states in which they were judged.

        :param connection: a transaction of our own
        :param ends: what to write; those that are alike are written at once
        :param now: the present
        :returns: what was written
        """
        alike: dict[tuple[Any, ...], list[str]] = {}
        for end in ends:
            key = (end.event, end.launch.kind, end.launch.state, end.ending.reason)
            alike.setdefault(key, []).append(end.launch.token)
        hit: set[str] = set()
        for (event, kind, state, reason), tokens in alike.items():
            hit |= store.record(
                connection,
                event,
                tokens,
                now=now,
                kind=kind,
                owner=self.owner,
                reason=reason,
                where=(LaunchRow.state == state.value,),
            )
        return [end.written(now) for end in ends if end.launch.token in hit]

    def _ran_without_fence(self, launch: Launch, observation: Observation) -> bool:
        return (
            self.unfenced_callbacks
            and launch.kind is LaunchKind.CALLBACK
            and launch.backend is BackendName.CELERY
            and launch.unclaimed
            and observation.ok
        )

    def _claim_unfenced(self, connection: Connection, launch: Launch, now: datetime) -> Launch | None:
        values: Mapping[str, Any] = {"claimant": UNFENCED}
        hit = store.record(
            connection,
            LaunchEvent.CLAIM,
            (launch.token,),
            now=now,
            kind=launch.kind,
            owner=self.owner,
            where=(LaunchRow.state == launch.state.value,),
            values=values,
        )
        if not hit:
            return None
        return launch._replace(state=target(LaunchEvent.CLAIM), claimant=UNFENCED, claimed_at=now)


def ending_from(launch: Launch, observation: Observation) -> Ending:
    """Return how the artefact of a launch ended, and whether it is the claimant's own (rule 13).

    A callback's result is reported by the guard. If the artefact ended while the launch is still open, no
    result was reported: what the backend shows alone never makes a success, unless a worker without the
    guard ran it.
    """
    reason = None if observation.reason is None else storable(observation.reason)
    if launch.kind is LaunchKind.CALLBACK:
        ok = observation.ok and launch.was_claimed and not launch.claimed_with_nonce
        if not ok:
            what = (
                "ended without having been claimed"
                if launch.unclaimed
                else "ended without reporting a result"
            )
            unknown = "" if launch.unclaimed else "outcome unknown: "
            reason = f"{unknown}the callback's worker {what}" + (f": {reason}" if reason else "")
        return Ending(ok=ok, proven=True, reason=None if ok else reason)
    # A start that was refused exits with 0 too: a success is proven by the name of the claimant itself, and
    # not by the pod in which it ran.
    proven = _held_the_claim(launch, observation) and (
        not observation.ok or launch.claimant == observation.claimant
    )
    return Ending(ok=observation.ok, proven=proven, reason=reason)


def decisive_of(launch: Launch, observations: Sequence[Observation]) -> Observation | None:
    """Return the one of several artefacts of a launch whose end counts; None while that is open.

    The claimant's own, if it has ended. Otherwise one that has not ended may hold the claim, or still win it.

    :param launch: its ledger row
    :param observations: the endings of its artefacts, at least one
    """
    for observation in observations:
        if _held_the_claim(launch, observation):
            return observation
    if any(observation.outlived for observation in observations):
        return None
    return observations[0]


def lost_the_claim(launch: Launch, observation: Observation) -> bool:
    """Whether this is, or may be, the end of an execution other than the one that claimed a callback.

    It says nothing of the callback: the claimant may still run, and there is no heartbeat to wait for. The
    claimant's own end is its report, or an end that names it.
    """
    return (
        launch.kind is LaunchKind.CALLBACK
        and launch.was_claimed
        and (observation.claimant is not None or observation.anonymous)
        and not _held_the_claim(launch, observation)
        and not _is_stock_success(launch, observation)
    )


def is_of_another(launch: Launch, observation: Observation) -> bool:
    """Whether this is the end of an execution that is known not to be the one that claimed a task.

    Where that task has moved on, it says nothing of the launch: the task instance does.
    """
    named = launch.claimed_with_nonce and observation.claimant is not None
    return launch.kind is LaunchKind.TASK and named and not _held_the_claim(launch, observation)


def _is_stock_success(launch: Launch, observation: Observation) -> bool:
    """Whether a worker without the guard tells that the callback which it claimed ended well.

    On Airflow 3.4 such workers claim too, and report no result: what they store is all there is. The guard
    names itself in a success, and of those without it only the claimant has run anything. A failure may be
    that of a delivery which was refused.
    """
    return observation.ok and observation.anonymous and launch.was_claimed and not launch.claimed_with_nonce


def _held_the_claim(launch: Launch, observation: Observation) -> bool:
    if launch.claimant is None or observation.claimant is None:
        return False
    return launch.claimant.startswith(observation.claimant)


def event_for(
    launch: Launch,
    subject: Subject | None,
    ending: Ending,
    observation: Observation,
    verdict: ReportVerdict,
) -> LaunchEvent:
    """Return the event that the end of an artefact is to its launch."""
    if verdict is ReportVerdict.SETTLE and launch.unclaimed:
        return _useless(subject, launch)
    if observation.gone:
        return LaunchEvent.LOSE
    if ending.ok and launch.was_claimed:
        return LaunchEvent.END_OK
    if launch.submitted_at is None and launch.unclaimed:
        return LaunchEvent.DROP
    return LaunchEvent.END_FAILED


def _useless(subject: Subject | None, launch: Launch) -> LaunchEvent:
    if subject is None or subject.token != launch.token:
        return LaunchEvent.SUPERSEDE
    return LaunchEvent.DROP


def left_running(launch: Launch, subject: Subject | None) -> bool:
    """Whether the task of a claimed launch is no longer running under it."""
    if subject is None or subject.token != launch.token:
        return True
    return subject.state not in ("running", "restarting")


def event_after_leaving(launch: Launch, subject: Subject | None) -> tuple[LaunchEvent, str]:
    """Return how a claimed task launch ended of which no artefact tells, from the task instance alone.

    A task that deferred, was rescheduled or goes to retry by its own report is a launch that succeeded.
    """
    if subject is None or subject.token != launch.token:
        return LaunchEvent.SUPERSEDE, "the task instance belongs to another launch"
    if subject.state == "failed":
        return LaunchEvent.END_FAILED, "the task instance failed; its artefact left no result"
    kind = "finished" if subject.state in TASK_FINISHED else "went on"
    return LaunchEvent.END_OK, f"the task instance {kind} ({subject.state}); its artefact left no result"
