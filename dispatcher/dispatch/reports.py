# SPDX-License-Identifier: Apache-2.0
"""Reporting: which ends are told to Airflow, decided afresh each time the event buffer is drained."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow.utils.state import CallbackState, TaskInstanceState
from sqlalchemy import Connection

from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState, sources
from dispatcher.domain.protocol import Ending, ReportVerdict, callback_ending, judge_report
from dispatcher.ledger import store, subjects

log = logging.getLogger(__name__)

_TOLD = "ended by the scheduler"

Event = tuple[Any, Any]
"""Airflow's event: state and info."""


@dataclass(slots=True)
class Report:
    """The end of one launch that Airflow may have to hear of.

    :param launch: the ledger row
    :param key: how the scheduler knows the subject
    :param ending: how its artefact ended
    """

    launch: Launch
    key: Any
    ending: Ending


class ReportTable:
    """Reports that are not settled yet, and those that may be settled now (rule 14).

    :param owner: job id of this scheduler: it reports nothing about launches that another took over
    :param own: the names of this executor (rule 13)
    :param heartbeat_timeout: seconds that a running task's heartbeat may stand still
    """

    def __init__(self, owner: str, own: subjects.OwnExecutors | None, heartbeat_timeout: float) -> None:
        self._owner = owner
        self._own = own
        self._heartbeat_timeout = timedelta(seconds=heartbeat_timeout)
        self._open: dict[str, Report] = {}
        self._settleable: dict[str, Launch] = {}
        self._named: set[str] = set()

    def __contains__(self, token: str) -> bool:
        return token in self._open or token in self._settleable

    def __len__(self) -> int:
        return len(self._open)

    def add(self, report: Report) -> None:
        """Take up the end of a launch."""
        self._open[report.launch.token] = report

    @property
    def pending(self) -> bool:
        """Whether there is any end to decide about."""
        return bool(self._open)

    def judge(self, launch: Launch, subject: Subject | None, ending: Ending, now: datetime) -> ReportVerdict:
        """Decide on one end (rule 13).

        :param launch: its ledger row
        :param subject: its subject as read
        :param ending: how its artefact ended
        :param now: the present
        """
        return judge_report(launch, subject, ending, now, self._heartbeat_timeout)

    def due(
        self, connection: Connection, now: datetime, dag_ids: Collection[str] | None = None
    ) -> dict[Any, Event]:
        """Return the events that Airflow has to hear now.

        What Airflow has heard, or must never hear, becomes settleable.

        :param connection: a transaction for the batched reads
        :param now: the present
        :param dag_ids: the DAGs whose tasks to tell of, callbacks aside; None for all
        """
        self._read_again(connection)
        reports = [report for report in self._open.values() if _is_asked_for(report.launch, dag_ids)]
        found = subjects.subjects_of(connection, [report.launch for report in reports], self._own)
        siblings = _siblings(connection, reports)
        events: dict[Any, Event] = {}
        for report in reports:
            token = report.launch.token
            try:
                event = self._event(report, found.get(token), siblings.get(token, ()), now)
            except Exception:
                # One that cannot be told must not keep the others from being told.
                if token not in self._named:
                    self._named.add(token)
                    log.exception("The end of launch %s cannot be told; it is tried again", token)
                continue
            if event is not None:
                events[report.key] = event
        return events

    def _event(
        self, report: Report, subject: Subject | None, others: Collection[Launch], now: datetime
    ) -> Event | None:
        """Return what is to be told of one end now; what has been heard becomes settleable."""
        launch = report.launch
        verdict = judge_report(launch, subject, report.ending, now, self._heartbeat_timeout, others=others)
        if verdict is ReportVerdict.EMIT:
            return event_of(replace(report, ending=callback_ending(launch, report.ending, others)))
        if verdict is ReportVerdict.SETTLE:
            self._settleable[launch.token] = self._open.pop(launch.token).launch
        return None

    def _read_again(self, connection: Connection) -> None:
        launches = store.by_tokens(connection, self._open)
        for token, report in list(self._open.items()):
            launch = launches.get(token)
            if launch is None or launch.scheduler_job_id != self._owner:
                del self._open[token]
            else:
                self._open[token] = replace(report, launch=launch)

    def settleable(self) -> Mapping[str, Launch]:
        """Return the launches that may be settled, by token."""
        return dict(self._settleable)

    def settled(self, token: str) -> None:
        """Forget a launch whose ``settled_at`` is written."""
        self._settleable.pop(token, None)
        self._open.pop(token, None)
        self._named.discard(token)


def _is_asked_for(launch: Launch, dag_ids: Collection[str] | None) -> bool:
    return dag_ids is None or launch.kind is LaunchKind.CALLBACK or launch.dag_id in dag_ids


def _siblings(connection: Connection, reports: Collection[Report]) -> dict[str, list[Launch]]:
    """Return the other launches of the callbacks that reports are about, by token (rule 19)."""
    callbacks = [one.launch for one in reports if one.launch.kind is LaunchKind.CALLBACK]
    launches = store.launches_of(connection, LaunchKind.CALLBACK, {launch.subject_id for launch in callbacks})
    return {
        launch.token: [one for one in launches[launch.subject_id] if one.token != launch.token]
        for launch in callbacks
    }


def event_of(report: Report) -> Event:
    """Return the terminal event that tells the end of a launch; an unclaimed task never succeeded."""
    launch, ending = report.launch, report.ending
    info = None if ending.ok else (ending.reason or launch.end_reason or f"launch {launch.state.value}")
    if launch.kind is LaunchKind.CALLBACK:
        return (CallbackState.SUCCESS, None) if ending.ok else (CallbackState.FAILED, info)
    if ending.ok and launch.was_claimed:
        return (TaskInstanceState.SUCCESS, None)
    return (TaskInstanceState.FAILED, info or "the launch ended without having been claimed")


def ending_of(launch: Launch) -> Ending:
    """Return how an ended launch ended, from the ledger alone."""
    return Ending(
        ok=launch.state is LaunchState.SUCCEEDED,
        proven=launch.kind is LaunchKind.CALLBACK or launch.state is LaunchState.REVOKED,
        reason=launch.end_reason,
    )


def told_ending(info: Any) -> Ending:
    """Return how a launch ended that the scheduler itself ended.

    :param info: its reason
    """
    return Ending(ok=False, proven=True, reason=f"{_TOLD}: {info}" if info else _TOLD)


def record_told(connection: Connection, told: Mapping[str, Event], owner: str, now: datetime) -> None:
    """Write the ends of launches that the scheduler itself ended.

    :param connection: a transaction of our own
    :param told: what the scheduler said, by token
    :param owner: job id of this scheduler; what belongs to another one is left to it
    :param now: the present
    """
    for token, launch in store.by_tokens(connection, told).items():
        event = LaunchEvent.END_FAILED
        if launch.state not in sources(event, launch.kind):
            event = LaunchEvent.DROP
        reason = told_ending(told[token][1]).reason
        store.record(connection, event, (token,), now=now, kind=launch.kind, owner=owner, reason=reason)


def may_still_run(launch: Launch) -> bool:
    """Whether the artefact of an ended launch may still start or run, and has to be stopped."""
    return launch.state in (LaunchState.REVOKED, LaunchState.DROPPED, LaunchState.SUPERSEDED) or (
        launch.state is LaunchState.FAILED and (launch.end_reason or "").startswith(_TOLD)
    )


def is_winding_down(launch: Launch, now: datetime, patience: float) -> bool:
    """Whether a superseded claimant may still be finishing: it deferred, say, and uploads its log.

    :param launch: its ledger row
    :param now: the present
    :param patience: seconds that it may take
    """
    if launch.state is not LaunchState.SUPERSEDED or not launch.was_claimed or launch.ended_at is None:
        return False
    return (now - launch.ended_at).total_seconds() < patience
