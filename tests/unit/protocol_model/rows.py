# SPDX-License-Identifier: Apache-2.0
"""The rows of the model: Airflow's task instances and callbacks, and the ledger with its compare-and-sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import ENDED, LaunchEvent, LaunchKind, LaunchState, target
from tests.unit.protocol_model import oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from tests.unit.protocol_model.rules import Rules


class TaskKey(NamedTuple):
    """How the scheduler knows a task: its place and its try."""

    place: str
    try_number: int


class CallbackKey(NamedTuple):
    """How the scheduler knows a callback."""

    id: str


Key = TaskKey | CallbackKey


def key_of(launch: Launch) -> Key:
    """Return how the scheduler knows the subject of a launch."""
    if launch.kind is LaunchKind.CALLBACK:
        return CallbackKey(launch.subject_id)
    return TaskKey(launch.task_id or "", launch.try_number or 0)


@dataclass(slots=True)
class TaskRow:
    """A task instance, with what Airflow keeps in its row.

    :param place: stays the same when a clear or a retry gives the row a new id
    :param fresh_ids: the scheduler writes a new token with QUEUED (not so in some mixed executor lists)
    :param ours: its executor resolves to this one
    :param resumed: a trigger has fired (``next_method`` is set)
    :param said_success: the task itself or a user said so
    """

    place: str
    id: str
    backend: str
    fresh_ids: bool = True
    ours: bool = True
    state: str | None = None
    token: str | None = None
    try_number: int = 0
    max_tries: int = 3
    heartbeat_at: datetime | None = None
    queued_at: datetime | None = None
    queued_by: str | None = None
    resumed: bool = False
    times_stuck: int = 0
    said_success: bool = False

    @property
    def key(self) -> TaskKey:
        """The key of its present try."""
        return TaskKey(self.place, self.try_number)

    def subject(self) -> Subject:
        """Return what the domain sees of it."""
        return Subject(
            id=self.id, state=self.state, token=self.token, heartbeat_at=self.heartbeat_at, ours=self.ours
        )


@dataclass(slots=True)
class CallbackRow:
    """A callback.

    :param result: what its body reported, and the API server accepted
    :param deleted: its row is gone
    """

    id: str
    backend: str
    state: str = "pending"
    result: str | None = None
    deleted: bool = False

    def subject(self) -> Subject | None:
        """Return what the domain sees of it."""
        return None if self.deleted else Subject(id=self.id, state=self.state)


class Ledger:
    """The table of launches.

    :param rules: the conditions of its compare-and-sets
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._newest = 0
        self.rows: dict[str, Launch] = {}

    def add(self, launch: Launch) -> None:
        """Insert a launch; the token is unique."""
        self._newest += 1
        self.rows[launch.token] = launch._replace(sequence=self._newest)

    def remove(self, token: str) -> None:
        """Remove a launch."""
        del self.rows[token]

    def read(self, tokens: Collection[str]) -> dict[str, Launch]:
        """Read launches by token."""
        return {token: self.rows[token] for token in sorted(tokens) if token in self.rows}

    def record(
        self,
        event: LaunchEvent,
        token: str,
        now: datetime,
        *,
        owner: str | None = None,
        where: Callable[[Launch], bool] = lambda _: True,
        **values: Any,
    ) -> bool:
        """Move one launch on, as a compare-and-set; returns whether it was hit."""
        launch = self.rows.get(token)
        if launch is None or not self._rules.allows(launch, event):
            return False
        if (owner is not None and not self._rules.owns(launch, owner)) or not where(launch):
            return False
        state = target(event)
        time = {LaunchState.SUBMITTED: "submitted_at", LaunchState.CLAIMED: "claimed_at"}.get(
            state, "ended_at"
        )
        after = launch._replace(state=state, **{time: now}, **values)
        oracle.transition(launch, after)
        self.rows[token] = after
        return True

    def take_over(self, token: str, owner: str, dead: Collection[str | None]) -> bool:
        """Give a launch of a dead scheduler a new owner; returns whether it was hit."""
        launch = self.rows[token]
        hit = launch.settled_at is None and self._rules.may_take_over(launch, dead)
        if hit:
            self.rows[token] = launch._replace(scheduler_job_id=owner)
        return hit

    def settle(self, token: str, now: datetime) -> None:
        """Mark an ended launch as dealt with."""
        launch = self.rows[token]
        if launch.state in ENDED and launch.settled_at is None:
            self.rows[token] = launch._replace(settled_at=now)

    def of_subject(self, launch: Launch) -> list[Launch]:
        """Return all launches of the subject of a launch, oldest first."""
        return [
            one
            for one in self.rows.values()
            if one.kind is launch.kind and one.subject_id == launch.subject_id
        ]

    def of_callback(self, callback_id: str) -> list[Launch]:
        """Return all launches of a callback."""
        return [
            one
            for one in self.rows.values()
            if one.kind is LaunchKind.CALLBACK and one.subject_id == callback_id
        ]

    def others(self, launch: Launch) -> list[Launch]:
        """Return the other launches of the same callback."""
        if launch.kind is not LaunchKind.CALLBACK:
            return []
        return [one for one in self.of_callback(launch.subject_id) if one.token != launch.token]

    def claimed_elsewhere(self, launch: Launch) -> bool:
        """Whether another launch of the same callback was ever claimed."""
        return any(one.was_claimed for one in self.others(launch))
