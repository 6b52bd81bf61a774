# SPDX-License-Identifier: Apache-2.0
"""The decisions of the protocol, in one object: the domain's functions and the conditions of the writes.

The model decides nothing itself. A mutant overrides one method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.dispatch.observe import ending_from
from dispatcher.domain import protocol, relaunching
from dispatcher.domain.launch import Launch, Subject, claimant_from_nonce, claimant_from_process
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, sources

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta

    from dispatcher.backends.base import Observation
    from tests.unit.protocol_model.rows import TaskRow


def is_queued_under(row: TaskRow | None, token: str) -> bool:
    """Say whether a task is QUEUED and carries this token, as ``store.queued_under_this_token`` asks."""
    return row is not None and row.state == "queued" and row.token == token


class Rules:
    """The protocol as it is."""

    # Rule 2

    def needs_new_token(self, token: str | None, *, in_ledger: bool) -> bool:
        """Whether the executor has to issue a token itself."""
        return token is None or in_ledger

    # Rule 3, and the transitions table

    def allows(self, launch: Launch, event: LaunchEvent) -> bool:
        """Whether a write may move the launch on by this event."""
        return launch.state in sources(event, launch.kind)

    def is_made_old_by(self, launch: Launch, newer: Launch) -> bool:
        """Whether the submission of ``newer`` supersedes this launch."""
        tasks = launch.kind is newer.kind is LaunchKind.TASK
        return tasks and launch.open and launch.task_id == newer.task_id and launch.sequence < newer.sequence

    # Rule 4

    def judge_submit(
        self, launch: Launch | None, subject: Subject | None, owner: str, *, claimed_elsewhere: bool
    ) -> protocol.SubmitVerdict:
        """Whether a launch may be sent."""
        return protocol.judge_submit(launch, subject, owner, claimed_elsewhere=claimed_elsewhere)

    def owns(self, launch: Launch, owner: str) -> bool:
        """Whether a write of this scheduler may hit the launch."""
        return launch.scheduler_job_id == owner

    def submit_finds(self, row: TaskRow | None, token: str) -> bool:
        """The criterion on the task that the write-ahead repeats in its statement."""
        return is_queued_under(row, token)

    def sends_at_once(self) -> bool:
        """Whether work is handed to a backend before the transaction that queued it is committed."""
        return False

    # Rule 6

    def may_relaunch(self, launch: Launch, subject: Subject | None, others: Collection[Launch]) -> bool:
        """Whether a launch that never ran may be replaced."""
        return relaunching.may_relaunch(launch, subject, others=others)

    def relaunches(self, launches: Sequence[Launch]) -> int:
        """How many relaunches in a row led to the newest launch of a subject."""
        return relaunching.relaunches(launches)

    def relaunch_ends_the_old(self) -> bool:
        """Whether the transaction that issues the new launch ends the old one."""
        return True

    def token_to_send(self, launch: Launch) -> str:
        """Return the token under which a launch is sent, and sent again."""
        return launch.token

    # Rules 7 and 8

    def claimant(self, worker: str, execution: str, *, stock: bool) -> str:
        """Name the claimant of one execution."""
        if stock:
            return claimant_from_process(worker, "airflow", int(execution))
        return claimant_from_nonce(execution)

    def claim_finds(self, row: TaskRow | None, token: str) -> bool:
        """The criterion on the task that the claim repeats in its statement."""
        return is_queued_under(row, token)

    def judge_claim(
        self, launch: Launch | None, subject: Subject | None, token: str, claimant: str, *, by_header: bool
    ) -> protocol.Permit | protocol.Refusal:
        """What the fence says to ``/run``."""
        return protocol.judge_claim(launch, subject, token, claimant, by_header=by_header)

    def judge_call(
        self, launch: Launch | None, subject: Subject | None, token: str, claimant: str | None
    ) -> protocol.Permit | protocol.Refusal:
        """What the fence says to later calls."""
        return protocol.judge_call(launch, subject, token, claimant)

    # Rules 13 and 14

    def ending(self, launch: Launch, observation: Observation) -> protocol.Ending:
        """What the end of an artefact proves."""
        return ending_from(launch, observation)

    def judge_report(
        self,
        launch: Launch,
        subject: Subject | None,
        ending: protocol.Ending,
        now: datetime,
        heartbeat_timeout: timedelta,
        others: Collection[Launch],
    ) -> protocol.ReportVerdict:
        """Whether the end of an artefact is told to Airflow."""
        return protocol.judge_report(launch, subject, ending, now, heartbeat_timeout, others=others)

    def callback_ending(
        self, launch: Launch, ending: protocol.Ending, others: Collection[Launch]
    ) -> protocol.Ending:
        """What the end of a launch says of its callback."""
        return protocol.callback_ending(launch, ending, others)

    def reports_start(self) -> bool:
        """Whether the executor tells Airflow that something was sent."""
        return False

    def reports_again(self) -> bool:
        """Whether a report is kept until Airflow is seen to have heard it."""
        return True

    def removes_at_once(self) -> bool:
        """Whether artefacts are removed before their launch is settled."""
        return False

    # Rule 17

    def judge_revoke(self, launch: Launch | None, subject: Subject | None) -> protocol.RevokeVerdict:
        """What the executor answers when a task is found stuck in queued."""
        return protocol.judge_revoke(launch, subject)

    # Rule 18

    def judge_adopt(self, launch: Launch | None, subject: Subject) -> protocol.AdoptVerdict:
        """What becomes of a task of a dead scheduler."""
        return protocol.judge_adopt(launch, subject)

    def may_take_over(self, launch: Launch, dead: Collection[str | None]) -> bool:
        """Whether the write that takes a launch over may hit it."""
        return launch.scheduler_job_id in dead

    # Rule 19

    def judge_callback_claim(
        self, launch: Launch | None, subject: Subject, claimant: str, *, claimed_elsewhere: bool
    ) -> protocol.Permit | protocol.Refusal:
        """What the fence says to the claim of a callback."""
        return protocol.judge_callback_claim(launch, subject, claimant, claimed_elsewhere=claimed_elsewhere)

    def was_never_claimed(self, launches: Collection[Launch]) -> bool:
        """The criterion that the claim of a callback repeats in its statement."""
        return not any(launch.was_claimed for launch in launches)

    def has_expired(self, launch: Launch, now: datetime, patience: timedelta) -> bool:
        """Whether a callback has waited too long for its claim."""
        return protocol.has_expired(launch, now, patience)

    def is_abandoned(self, *, runs: bool) -> bool:
        """Whether a claimed callback is given up.

        :param runs: the execution that claimed it is still there
        """
        return not runs

    def judge_callback_result(
        self, launch: Launch | None, subject: Subject, claimant: str
    ) -> protocol.Permit | protocol.Refusal:
        """What the fence says to the reported result of a callback."""
        return protocol.judge_callback_result(launch, subject, claimant)

    # Rule 20

    def may_be_pruned(self, launch: Launch, subject: Subject | None, before: datetime) -> bool:
        """Whether the row of a launch may be removed."""
        return protocol.may_be_pruned(launch, subject, before)
