# SPDX-License-Identifier: Apache-2.0
"""Plain views of the rows that protocol decisions are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.domain.lifecycle import OPEN, UNCLAIMED, BackendName, LaunchKind, LaunchState

if TYPE_CHECKING:
    from datetime import datetime

NONCE_PREFIX = "nonce:"
"""Marks a claimant that presented a header of its own (rule 11 asks which)."""

PROCESS_PREFIX = "process:"
"""Marks a claimant known only by hostname, unix name and process id (rule 7)."""


def claimant_from_nonce(nonce: str) -> str:
    """Name the claimant of a worker that sent ``Airflow-Launch-Claimant``."""
    return NONCE_PREFIX + nonce


def claimant_from_process(hostname: str, unixname: str, pid: int) -> str:
    """Name the claimant of a worker that sent no header (rule 7)."""
    return f"{PROCESS_PREFIX}{hostname}|{unixname}|{pid}"


class Launch(NamedTuple):
    """One ledger row, as read.

    A tuple, for heartbeats read and change thousands of them: that takes a dataclass of so many fields three
    times as long.

    :param sequence: order of launches; never compare times
    :param token: the launch token
    :param kind: what it starts
    :param subject_id: UUID of the task instance or callback at the time of issue
    :param state: where the launch is in its life
    :param backend: where it is sent
    :param queue: the queue of the route
    :param scheduler_job_id: the scheduler that owns it
    :param claimant: who claimed it, see ``claimant_from_nonce`` and ``claimant_from_process``
    :param hostname: where the claimant runs
    :param external_id: Celery task id, or namespace/pod
    :param end_reason: why it ended, for people
    """

    sequence: int
    token: str
    kind: LaunchKind
    subject_id: str
    state: LaunchState
    backend: BackendName
    queue: str
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int = -1
    region_id: str | None = None
    try_number: int | None = None
    route_reason: str = ""
    external_id: str | None = None
    scheduler_job_id: str | None = None
    claimant: str | None = None
    hostname: str | None = None
    issued_at: datetime | None = None
    submitted_at: datetime | None = None
    claimed_at: datetime | None = None
    ended_at: datetime | None = None
    settled_at: datetime | None = None
    end_reason: str | None = None
    team_name: str | None = None

    @property
    def open(self) -> bool:
        """Whether it may still run or is running."""
        return self.state in OPEN

    @property
    def unclaimed(self) -> bool:
        """Whether it is open and no worker has won it."""
        return self.state in UNCLAIMED

    @property
    def external_id_ahead(self) -> str | None:
        """Where its artefact is, as far as that is known before the send: a Celery message has its token."""
        return self.token if self.backend is BackendName.CELERY else self.external_id

    @property
    def was_claimed(self) -> bool:
        """Whether a worker ever won it."""
        return self.claimant is not None

    @property
    def claimed_with_nonce(self) -> bool:
        """Whether the claimant sent a header of its own (rule 11)."""
        return self.claimant is not None and self.claimant.startswith(NONCE_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The row a launch is about, as read: a task instance or a callback.

    :param id: UUID of the row
    :param state: Airflow's state, lower case; None is "no state"
    :param token: ``external_executor_id`` of a task instance; None for callbacks
    :param heartbeat_at: the last task heartbeat
    :param ours: whether its executor resolves to this executor instance (rule 13)
    """

    id: str
    state: str | None
    token: str | None = None
    heartbeat_at: datetime | None = None
    ours: bool = True
