# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind to be judged, as plain values. Pure: no import of Airflow."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One row of the ledger at the end of the run.

    :param kind: ``task`` or ``callback``
    :param subject_id: UUID of the task instance or callback
    :param end_reason: why it ended, for people
    """

    token: str
    kind: str
    subject_id: str
    state: str
    end_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of a row of the ledger, as a trigger of the database noted it.

    :param before: the state before; None for a new row
    :param claimant: who has the claim after it, if anybody
    :param owner: job id of the scheduler that owns the launch after it
    :param at: when, in seconds since the epoch
    """

    token: str
    before: str | None
    after: str
    claimant: str | None
    owner: str | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One run of the body of a task or callback.

    :param kind: ``task`` or ``callback``
    :param subject: dag, run, task, map index and try of a task; empty for a callback
    :param token: the launch it ran under
    :param place: the worker, by a name that no other process has, or the pod
    :param began: seconds since the epoch
    :param ended: the same; None if it never came to its end
    """

    kind: str
    subject: tuple[str | int, ...]
    token: str
    place: str
    began: float
    ended: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task instance at the end of the run.

    :param subject: dag, run, task, map index and try
    """

    subject: tuple[str | int, ...]
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A callback at the end of the run.

    :param output: what Airflow has of its result
    """

    id: str
    state: str
    output: str | None = None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that is judged.

    :param killed: places that were killed, and when that began, in seconds since the epoch
    :param slots: how many slots each scheduler's executor held when nothing was left to run; None if it
        did not say
    """

    launches: list[Launch] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    callbacks: list[Callback] = field(default_factory=list)
    killed: dict[str, float] = field(default_factory=dict)
    slots: dict[str, int | None] = field(default_factory=dict)
