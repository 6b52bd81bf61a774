# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of ``dispatcher_launch``, which nothing outside this package touches.

Every function works inside the caller's transaction and never commits. Writes are compare-and-sets on the
states that the transitions table allows and, where one is given, on the owner; they return the tokens that
were hit, so that a miss is a result and not an error. Lock order everywhere: subject row first, then ledger
rows by token.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.jobs.job import Job
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    exists,
    insert,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.orm import Session

from dispatcher.compat import at_the_place_in
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import (
    ENDED,
    OPEN,
    UNCLAIMED,
    BackendName,
    LaunchEvent,
    LaunchKind,
    LaunchState,
    sources,
    target,
)
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.rows import COLUMNS, chunks, compare_and_set, launch_of, of_team, values_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

_TIME_OF_STATE: Mapping[LaunchState, str] = {
    LaunchState.SUBMITTED: "submitted_at",
    LaunchState.CLAIMED: "claimed_at",
} | dict.fromkeys(ENDED, "ended_at")

NOTED_AT_ONCE = 64
"""How many external ids one statement notes."""

# Made once: a statement that differs with each batch takes SQLAlchemy longer than the database.
_PLACES: list[tuple[Any, Any]] = [
    (bindparam(f"token_{place}"), bindparam(f"id_{place}")) for place in range(NOTED_AT_ONCE)
]
_NOTE_EXTERNAL_IDS = (
    update(LaunchRow)
    .where(LaunchRow.token.in_([token for token, _ in _PLACES]))
    .values(external_id=case(*((LaunchRow.token == token, external_id) for token, external_id in _PLACES)))
)


def issue(session: Session, launch: Launch) -> None:
    """Add the row of a new launch to the caller's unit of work; nothing is sent to the database yet (rule 1).

    :param session: the scheduler's session
    :param launch: ``sequence`` is ignored: the database assigns it
    """
    session.add(LaunchRow(**_values_of(launch)))


def insert_now(connection: Connection, launch: Launch) -> None:
    """Insert the row of a new launch at once; ``issue`` is for the scheduler's unit of work.

    :param connection: the caller's transaction
    :param launch: see ``issue``
    """
    connection.execute(insert(LaunchRow).values(**_values_of(launch)))


def by_tokens(connection: Connection, tokens: Collection[str], *, lock: bool = False) -> dict[str, Launch]:
    """Read launches by token.

    :param connection: the caller's transaction
    :param tokens: what to look for; unknown ones are absent from the result
    :param lock: take the row locks, in the order of the tokens
    """
    found: dict[str, Launch] = {}
    for chunk in chunks(tokens):
        statement = select(*COLUMNS).where(LaunchRow.token.in_(chunk)).order_by(LaunchRow.token)
        if lock:
            statement = statement.with_for_update()
        for row in connection.execute(statement):
            found[row.token] = launch_of(row)
    return found


def by_token(connection: Connection, token: str, *, lock: bool = False) -> Launch | None:
    """Read the launch of ``token``, or None.

    :param connection: the caller's transaction
    :param lock: take the row lock
    """
    return by_tokens(connection, (token,), lock=lock).get(token)


def open_of_owner(connection: Connection, owner: str, team: str | None = None) -> list[Launch]:
    """Read the open launches of one executor, oldest first.

    :param connection: the caller's transaction
    :param owner: the job id of its scheduler
    :param team: its team: the executors of several teams share one scheduler
    """
    return _read(
        connection,
        # An open launch is never settled; to say so leads past all that the owner has settled before.
        LaunchRow.settled_at.is_(None),
        LaunchRow.scheduler_job_id == owner,
        of_team(team),
        LaunchRow.state.in_(values_of(OPEN)),
    )


def unsettled_of_owner(connection: Connection, owner: str, team: str | None = None) -> list[Launch]:
    """Read the ended launches of one executor whose artefacts or reports are still to be dealt with.

    :param connection: the caller's transaction
    :param owner: the job id of its scheduler
    :param team: its team
    """
    return _read(
        connection,
        LaunchRow.scheduler_job_id == owner,
        of_team(team),
        LaunchRow.settled_at.is_(None),
        # In the owner's index, unlike the state: what is still open is not read.
        LaunchRow.ended_at.is_not(None),
        LaunchRow.state.in_(values_of(ENDED)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which launches a person wants to see; what is None does not matter."""

    states: Collection[LaunchState] | None = None
    kind: LaunchKind | None = None
    backend: BackendName | None = None
    dag_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None


def recent(connection: Connection, *, limit: int, selection: Selection = Selection()) -> list[Launch]:
    """Read the newest launches, newest first; for people and their tools.

    :param connection: the caller's transaction
    :param limit: how many at most
    :param selection: which ones
    """
    statement = select(*COLUMNS).order_by(LaunchRow.sequence.desc()).limit(limit)
    if selection.states is not None:
        statement = statement.where(LaunchRow.state.in_(values_of(selection.states)))
    for key in ("kind", "backend", "dag_id", "task_id", "run_id"):
        if (wanted := getattr(selection, key)) is not None:
            statement = statement.where(getattr(LaunchRow, key) == str(wanted))
    return [launch_of(row) for row in connection.execute(statement)]


def launches_of(
    connection: Connection, kind: LaunchKind, subject_ids: Collection[str]
) -> dict[str, list[Launch]]:
    """Return all launches of subjects, oldest first, by subject (rules 6 and 19).

    :param connection: the caller's transaction
    :param kind: what the subjects are
    :param subject_ids: their UUIDs
    """
    found: dict[str, list[Launch]] = {}
    for chunk in chunks(subject_ids):
        launches = _read(connection, LaunchRow.subject_id.in_(chunk), LaunchRow.kind == kind.value)
        for launch in launches:
            found.setdefault(launch.subject_id, []).append(launch)
    return found


def callback_claimed_elsewhere(connection: Connection, subject_ids: Collection[str]) -> dict[str, set[str]]:
    """Return, for each callback, the tokens of its launches that were ever claimed (rule 19).

    :param connection: the caller's transaction
    :param subject_ids: UUIDs of callbacks
    """
    claimed: dict[str, set[str]] = {}
    for chunk in chunks(subject_ids):
        statement = select(LaunchRow.subject_id, LaunchRow.token).where(
            LaunchRow.subject_id.in_(chunk),
            LaunchRow.kind == LaunchKind.CALLBACK.value,
            LaunchRow.claimant.is_not(None),
        )
        for subject_id, token in connection.execute(statement):
            claimed.setdefault(subject_id, set()).add(token)
    return claimed


def record(  # noqa: PLR0913
    connection: Connection,
    event: LaunchEvent,
    tokens: Collection[str],
    *,
    now: datetime,
    kind: LaunchKind = LaunchKind.TASK,
    owner: str | None = None,
    reason: str | None = None,
    where: Sequence[ColumnElement[bool]] = (),
    values: Mapping[str, Any] | None = None,
) -> frozenset[str]:
    """Move launches on by one event, as a compare-and-set.

    :param connection: the caller's transaction
    :param event: what happened
    :param tokens: to which launches
    :param now: when
    :param kind: what they start; decides which states allow ``event``
    :param owner: the scheduler that must own them, if that matters
    :param reason: why they ended, for people
    :param where: further conditions
    :param values: further columns to write
    :returns: the tokens that were hit
    """
    state = target(event)
    new: dict[str, Any] = {"state": state.value, _TIME_OF_STATE[state]: now, **(values or {})}
    if reason is not None:
        new["end_reason"] = reason
    conditions: list[ColumnElement[bool]] = [LaunchRow.state.in_(values_of(sources(event, kind)))]
    if owner is not None:
        conditions.append(LaunchRow.scheduler_job_id == owner)
    return frozenset(compare_and_set(connection, tokens, conditions, new, also=where))


def queued_under_this_token(*also: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the criterion "its task instance is QUEUED and carries this launch's token" (rules 4 and 7).

    :param also: what else is known of the task instance
    """
    return carried_by_its_task(*also, TaskInstance.state == "queued")


def carried_by_its_task(*also: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the criterion "its task instance carries this launch's token".

    :param also: what else must hold for the task instance
    """
    token = TaskInstance.external_executor_id == LaunchRow.token
    return exists().where(*also, at_the_place_in(LaunchRow), token)


def take_over(
    connection: Connection, tokens: Collection[str], *, owner: str, dead: Collection[str | None]
) -> frozenset[str]:
    """Give open launches of dead schedulers a new owner (rule 18).

    :param connection: the caller's transaction
    :param tokens: the launches
    :param owner: the new owner's job id
    :param dead: the job ids they may have had
    :returns: the tokens that were hit
    """
    known = [job for job in dead if job is not None]
    return frozenset(
        compare_and_set(
            connection,
            tokens,
            [LaunchRow.state.in_(values_of(OPEN)), LaunchRow.scheduler_job_id.in_(known)],
            {"scheduler_job_id": owner},
        )
    )


def take_over_orphans(connection: Connection, *, owner: str, team: str | None = None) -> frozenset[str]:
    """Take over what dead schedulers left and no adoption of task instances leads to (rule 18).

    That is: launches that have ended and are not settled, claimed launches (their task may have left the
    states that Airflow adopts), those of tasks that are queued no more, and callbacks. Launches of queued
    tasks come by the scheduler's own adoption.

    :param connection: the caller's transaction
    :param owner: the new owner's job id; if it is itself declared dead, it takes nothing
    :param team: the team of the executor; what belongs to another team is left to that team's
    :returns: the tokens that were hit
    """
    statement = select(Job.id).where(Job.job_type == "SchedulerJob", Job.state == "running")
    alive = {str(job_id) for job_id in connection.scalars(statement)}
    if owner not in alive:
        return frozenset()
    orphaned = [
        LaunchRow.settled_at.is_(None),
        of_team(team),
        LaunchRow.scheduler_job_id.not_in(alive),
        or_(
            LaunchRow.state.not_in(values_of(UNCLAIMED)),
            LaunchRow.kind == LaunchKind.CALLBACK.value,
            ~queued_under_this_token(),
        ),
    ]
    # One part for each gap between the living, a range of the index: what they have in flight is not read.
    by_gap = [select(LaunchRow.token).where(gap, *orphaned) for gap in _gaps_between(alive)]
    tokens = list(connection.scalars(union_all(*by_gap)))
    return frozenset(compare_and_set(connection, tokens, orphaned, {"scheduler_job_id": owner}))


def _gaps_between(owners: Collection[str]) -> list[ColumnElement[bool]]:
    """Return criteria that together take in every other owner, whatever order the database has for them.

    :param owners: at least one
    """
    owner, ordered = LaunchRow.scheduler_job_id, sorted(owners)
    between = [(owner > one) & (owner < next_one) for one, next_one in pairwise(ordered)]
    return [owner < ordered[0], *between, owner > ordered[-1]]


def note_external_ids(connection: Connection, external_ids: Mapping[str, str]) -> None:
    """Remember where the artefacts of launches are.

    :param connection: the caller's transaction
    :param external_ids: token -> Celery id, or namespace/pod
    """
    for chunk in chunks(external_ids, NOTED_AT_ONCE):
        # Rows are locked in the order of their tokens, as everywhere.
        named = LaunchRow.token.in_(chunk)
        connection.execute(select(LaunchRow.token).where(named).order_by(LaunchRow.token).with_for_update())
        # What is left of the statement's places is filled with the last token again.
        tokens = chunk + chunk[-1:] * (NOTED_AT_ONCE - len(chunk))
        values = {f"token_{place}": token for place, token in enumerate(tokens)}
        values |= {f"id_{place}": external_ids[token] for place, token in enumerate(tokens)}
        connection.execute(_NOTE_EXTERNAL_IDS, values)


def settle(connection: Connection, tokens: Collection[str], *, owner: str, now: datetime) -> frozenset[str]:
    """Mark ended launches as dealt with: reported and seen to have been heard (rule 14).

    :param connection: the caller's transaction
    :param tokens: the launches
    :param owner: the scheduler that must own them: what it left is the owner's to take away
    :param now: when
    :returns: the tokens that were hit
    """
    return frozenset(
        compare_and_set(
            connection,
            tokens,
            [
                LaunchRow.state.in_(values_of(ENDED)),
                LaunchRow.settled_at.is_(None),
                LaunchRow.scheduler_job_id == owner,
            ],
            {"settled_at": now},
        )
    )


def _read(connection: Connection, *where: ColumnElement[bool]) -> list[Launch]:
    statement = select(*COLUMNS).where(*where).order_by(LaunchRow.sequence)
    return [launch_of(row) for row in connection.execute(statement)]


def _values_of(launch: Launch) -> dict[str, Any]:
    values = {column.key: getattr(launch, column.key) for column in COLUMNS if column.key != "sequence"}
    return values | {"kind": launch.kind.value, "backend": launch.backend.value, "state": launch.state.value}
