# SPDX-License-Identifier: Apache-2.0
"""The check of a batch against the database, before anything of it is sent (rules 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from dispatcher.dispatch.flights import Flight
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState
from dispatcher.domain.protocol import SubmitVerdict, judge_submit
from dispatcher.ledger import store, subjects, submitting


@dataclass(frozen=True, slots=True)
class Cleared:
    """What the check found.

    :param tokens: launches that are submitted in the ledger now, and may be sent
    :param superseded: older launches that these replaced
    """

    tokens: frozenset[str]
    superseded: list[Launch]


def clear(connection: Connection, due: Sequence[Flight], owner: str, now: datetime) -> Cleared:
    """Write a batch to the ledger as submitted, and find what may not be sent any more.

    Nearly always every launch of the batch may be sent. So the compare-and-set comes first, which decides by
    itself, and only what it did not hit is read.

    :param connection: a transaction of our own
    :param due: launches with a workload to send; those that may be sent are brought up to date
    :param owner: job id of this scheduler
    :param now: the present
    """
    tasks = [flight.token for flight in due if flight.launch.kind is LaunchKind.TASK]
    hit = submitting.submit_tasks(connection, tasks, owner=owner, now=now)
    for flight in due:
        if flight.token in hit:
            flight.launch = _submitted(flight.launch, hit[flight.token], now)
    tokens = frozenset(hit) | _clear_others(
        connection, [flight for flight in due if flight.token not in hit], owner, now
    )
    return Cleared(tokens, _supersede(connection, tokens, now))


def _clear_others(
    connection: Connection, flights: Sequence[Flight], owner: str, now: datetime
) -> frozenset[str]:
    """Decide about callbacks, and about tasks that could not be sent as they stood a moment ago."""
    launches = store.by_tokens(connection, [flight.token for flight in flights])
    verdicts = _verdicts(connection, launches, owner)

    def judged(verdict: SubmitVerdict, kind: LaunchKind) -> list[str]:
        return [one.token for one in launches.values() if one.kind is kind and verdicts[one.token] is verdict]

    for kind in LaunchKind:
        store.record(
            connection,
            LaunchEvent.DROP,
            judged(SubmitVerdict.DROP, kind),
            now=now,
            kind=kind,
            owner=owner,
            reason="no longer wanted when it was to be sent",
        )
    callbacks = judged(SubmitVerdict.SEND, LaunchKind.CALLBACK)
    hit = set(submitting.submit_callbacks(connection, callbacks, owner=owner, now=now))
    hit |= submitting.submit_tasks(
        connection, judged(SubmitVerdict.SEND, LaunchKind.TASK), owner=owner, now=now
    ).keys()
    for flight in flights:
        if flight.token in hit:
            launch = launches[flight.token]
            flight.launch = _submitted(launch, launch.sequence, now)
    return frozenset(hit)


def _verdicts(connection: Connection, launches: Mapping[str, Launch], owner: str) -> dict[str, SubmitVerdict]:
    found = subjects.subjects_of(connection, list(launches.values()))
    callbacks = [one.subject_id for one in launches.values() if one.kind is LaunchKind.CALLBACK]
    claimed = store.callback_claimed_elsewhere(connection, callbacks)
    return {
        token: judge_submit(
            launch,
            found.get(token),
            owner,
            claimed_elsewhere=bool(claimed.get(launch.subject_id, set()) - {token}),
        )
        for token, launch in launches.items()
    }


def _submitted(launch: Launch, sequence: int, now: datetime) -> Launch:
    return launch._replace(
        sequence=sequence,
        state=LaunchState.SUBMITTED,
        submitted_at=now,
        external_id=launch.external_id_ahead,
    )


def _supersede(connection: Connection, tokens: frozenset[str], now: datetime) -> list[Launch]:
    older = submitting.older_open(connection, tokens)
    hit = store.record(
        connection,
        LaunchEvent.SUPERSEDE,
        [launch.token for launch in older],
        now=now,
        reason="a newer launch of the task was submitted",
    )
    return [launch for launch in older if launch.token in hit]
