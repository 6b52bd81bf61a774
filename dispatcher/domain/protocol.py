# SPDX-License-Identifier: Apache-2.0
"""The protocol's decisions, as pure functions: rows as read in, verdict out.

Every place that launches, claims, reports, revokes or adopts asks here what to do; the compare-and-set
that follows repeats the decisive conditions, so that a stale read can only make it miss.
The numbers are those of the protocol rules in ``docs/protocol.md``. What is launched again, and how often,
is decided in ``dispatcher.domain.relaunching``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.domain.wire import RefusalReason

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime, timedelta

    from dispatcher.domain.launch import Launch, Subject

TASK_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
CALLBACK_FINISHED = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """The fence's "no".

    :param reason: one of the contract's reasons
    :param message: for people; never tells the current token
    """

    reason: RefusalReason
    message: str


class Permit(StrEnum):
    """The fence's other answers."""

    CLAIM = "claim"
    """Take the launch by compare-and-set."""
    REPEAT = "repeat"
    """The same claimant asks again: accept (rule 8)."""
    PASS = "pass"
    """Not ours to judge: Airflow's own check of the state decides."""


class SubmitVerdict(StrEnum):
    """What to do with a launch about to be sent (rule 4)."""

    SEND = "send"
    FORGET = "forget"
    DROP = "drop"


class ReportVerdict(StrEnum):
    """What to do with the end of an artefact (rules 13 and 14)."""

    EMIT = "emit"
    WAIT = "wait"
    SETTLE = "settle"


class RevokeVerdict(StrEnum):
    """What to do when the scheduler revokes a task (rule 17)."""

    REVOKE = "revoke"
    DECLINE = "decline"
    NOTHING = "nothing"


class AdoptVerdict(StrEnum):
    """What to do with a task instance of a dead scheduler (rule 18)."""

    TAKE_OVER = "take_over"
    LEAVE = "leave"
    HAND_BACK = "hand_back"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an artefact ended, as its backend shows it.

    :param ok: it ended well (exit code 0, a stored success)
    :param proven: it is known to be the claimant's own (rule 13)
    :param reason: for people
    """

    ok: bool
    proven: bool
    reason: str | None = None


def why_ended(launch: Launch) -> Refusal:
    """Say why an ended launch cannot be claimed."""
    if launch.state is LaunchState.REVOKED:
        return Refusal(RefusalReason.REVOKED, "this launch was revoked")
    if launch.was_claimed:
        return Refusal(RefusalReason.CONSUMED, "this launch was already run by another claimant")
    return Refusal(RefusalReason.SUPERSEDED, f"this launch is {launch.state.value} and can no longer start")


def why_not_current(launch: Launch | None) -> Refusal:
    """Say why a token that its subject does not carry is refused (rule 3)."""
    if launch is not None and launch.state is LaunchState.REVOKED:
        return Refusal(RefusalReason.REVOKED, "this launch was revoked")
    return Refusal(RefusalReason.SUPERSEDED, "this launch is no longer the current one of its subject")


def judge_claim(
    launch: Launch | None, subject: Subject | None, token: str, claimant: str, *, by_header: bool
) -> Permit | Refusal:
    """Decide on ``/run`` with a token (rules 7 and 8).

    :param launch: the ledger row of the token
    :param subject: the task instance of the path, locked
    :param token: the presented token
    :param claimant: who asks
    :param by_header: the token came in a header, so the caller understands our reasons
    """
    if subject is None:
        return Permit.PASS if launch is None else why_not_current(launch)
    if subject.token != token:
        return why_not_current(launch)
    if launch is None:
        return Permit.PASS
    if launch.subject_id != subject.id:
        return why_not_current(launch)
    if launch.unclaimed:
        return _judge_first_claim(subject)
    if launch.state is LaunchState.CLAIMED:
        return _judge_claimed(launch, subject, claimant, by_header=by_header)
    return why_ended(launch)


def _judge_first_claim(subject: Subject) -> Permit | Refusal:
    if subject.state == "queued":
        return Permit.CLAIM
    if subject.state == "running":
        # Started through an API server without the fence: Airflow's own answer is the right one.
        return Permit.PASS
    if subject.state in TASK_FINISHED:
        return Refusal(RefusalReason.REVOKED, f"the task instance is already {subject.state}")
    return Refusal(RefusalReason.SUPERSEDED, f"the task instance is {subject.state or 'not queued'}")


def _judge_claimed(launch: Launch, subject: Subject, claimant: str, *, by_header: bool) -> Permit | Refusal:
    if launch.claimant == claimant and subject.state == "running":
        return Permit.REPEAT
    if not by_header and subject.state == "running":
        return Permit.PASS
    return Refusal(RefusalReason.CONSUMED, "another claimant runs this launch")


def judge_call(
    launch: Launch | None, subject: Subject | None, token: str, claimant: str | None
) -> Permit | Refusal:
    """Decide on a call after the claim, with a token (rules 8 to 10).

    :param launch: the ledger row of the token
    :param subject: the task instance of the path, locked
    :param token: the presented token
    :param claimant: who asks; None if only the JWT carried the token
    """
    if subject is None:
        return Permit.PASS if launch is None else why_not_current(launch)
    if subject.token != token:
        return why_not_current(launch)
    if launch is None:
        return Permit.PASS
    if launch.state in (LaunchState.REVOKED, LaunchState.SUPERSEDED):
        return why_not_current(launch)
    if claimant is not None and launch.was_claimed and launch.claimant != claimant:
        return Refusal(RefusalReason.CONSUMED, "another claimant runs this launch")
    return Permit.PASS


def judge_untokened(current: Launch | None, *, is_run: bool, required: bool) -> Permit | Refusal:
    """Decide on a call without a token (rule 11).

    :param current: the ledger row of the token that the task instance carries
    :param is_run: the call is ``/run``
    :param required: ``[dispatcher] fence`` is ``required``
    """
    if not required or current is None:
        return Permit.PASS
    if is_run and current.unclaimed:
        return Refusal(RefusalReason.REQUIRED, "this task instance can only be started with its launch token")
    if not is_run and current.state is LaunchState.CLAIMED and current.claimed_with_nonce:
        return Refusal(RefusalReason.REQUIRED, "calls about this task instance need its launch token")
    return Permit.PASS


def judge_callback_claim(
    launch: Launch | None, subject: Subject, claimant: str, *, claimed_elsewhere: bool
) -> Permit | Refusal:
    """Decide on the claim of a callback (rule 19).

    :param launch: the ledger row of the token
    :param subject: the callback's row, locked
    :param claimant: who asks
    :param claimed_elsewhere: another launch of this callback was ever claimed
    """
    if launch is None or launch.subject_id != subject.id:
        return why_not_current(None)
    if launch.state is LaunchState.CLAIMED and launch.claimant == claimant:
        return Permit.REPEAT
    if launch.was_claimed or claimed_elsewhere:
        return Refusal(RefusalReason.CONSUMED, "another claimant runs or ran this callback")
    if not launch.unclaimed:
        return why_ended(launch)
    if subject.state in CALLBACK_FINISHED:
        return Refusal(RefusalReason.REVOKED, f"the callback is already {subject.state}")
    return Permit.CLAIM


def judge_callback_result(launch: Launch | None, subject: Subject, claimant: str) -> Permit | Refusal:
    """Decide on a reported result of a callback: CLAIM stands for "record it".

    :param launch: the ledger row of the token
    :param subject: the callback's row, locked
    :param claimant: who reports
    """
    if launch is None or launch.subject_id != subject.id:
        return why_not_current(None)
    if launch.claimant != claimant:
        return Refusal(RefusalReason.CONSUMED, "another claimant runs or ran this callback")
    if launch.state is LaunchState.CLAIMED:
        return Permit.CLAIM
    if launch.state in (LaunchState.SUCCEEDED, LaunchState.FAILED):
        return Permit.REPEAT
    return why_not_current(launch)


def judge_submit(
    launch: Launch | None, subject: Subject | None, owner: str, *, claimed_elsewhere: bool = False
) -> SubmitVerdict:
    """Decide whether a launch may be sent (rule 4).

    :param launch: its ledger row
    :param subject: its task instance or callback, read without a lock
    :param owner: this scheduler
    :param claimed_elsewhere: another launch of this callback was ever claimed (rule 19)
    """
    if launch is None or not launch.unclaimed or launch.scheduler_job_id != owner:
        return SubmitVerdict.FORGET
    if subject is None:
        return SubmitVerdict.DROP
    if launch.kind is LaunchKind.CALLBACK:
        if claimed_elsewhere or subject.state in CALLBACK_FINISHED:
            return SubmitVerdict.DROP
        return SubmitVerdict.SEND
    if subject.token != launch.token or subject.state in TASK_FINISHED:
        return SubmitVerdict.DROP
    return SubmitVerdict.SEND if subject.state == "queued" else SubmitVerdict.FORGET


def judge_report(
    launch: Launch,
    subject: Subject | None,
    ending: Ending,
    now: datetime,
    heartbeat_timeout: timedelta,
    *,
    others: Collection[Launch] = (),
) -> ReportVerdict:
    """Decide whether the end of an artefact is told to Airflow (rules 13 and 14).

    :param launch: its ledger row
    :param subject: the task instance at the launch's place (by key, not by UUID), or the callback
    :param ending: how the artefact ended
    :param now: the present
    :param heartbeat_timeout: how long a running task's heartbeat may stand still
    :param others: the other launches of the same callback (rule 19); without meaning for tasks
    """
    if subject is None:
        return ReportVerdict.SETTLE
    if launch.kind is LaunchKind.CALLBACK:
        return _judge_callback_report(launch, subject, others)
    if not subject.ours or subject.token != launch.token:
        return ReportVerdict.SETTLE
    if not launch.was_claimed:
        if subject.state == "queued":
            return ReportVerdict.EMIT
        return _judge_running(subject, now, heartbeat_timeout)
    if subject.state == "restarting" or (subject.state == "running" and ending.proven):
        return ReportVerdict.EMIT
    return _judge_running(subject, now, heartbeat_timeout)


def _judge_callback_report(launch: Launch, subject: Subject, others: Collection[Launch]) -> ReportVerdict:
    # A callback's launch is superseded by its relaunch alone, which tells its own end.
    if subject.state in CALLBACK_FINISHED or launch.state is LaunchState.SUPERSEDED:
        return ReportVerdict.SETTLE
    # One that never ran has ended, but tells nothing as long as another may still run the callback.
    if not launch.open and not launch.was_claimed and any(other.open for other in others):
        return ReportVerdict.WAIT
    return ReportVerdict.EMIT


def callback_ending(launch: Launch, ending: Ending, others: Collection[Launch]) -> Ending:
    """Return what the end of a launch says of its callback: the outcome of the one that ran it (rule 19).

    :param launch: the ledger row
    :param ending: how its own artefact ended
    :param others: the other launches of the same callback
    """
    ran = next((other for other in others if other.was_claimed), None)
    if launch.was_claimed or ran is None:
        return ending
    return Ending(ok=ran.state is LaunchState.SUCCEEDED, proven=True, reason=ran.end_reason)


def _judge_running(subject: Subject, now: datetime, heartbeat_timeout: timedelta) -> ReportVerdict:
    if subject.state != "running":
        return ReportVerdict.SETTLE
    if subject.heartbeat_at is None or now - subject.heartbeat_at > heartbeat_timeout:
        return ReportVerdict.EMIT
    return ReportVerdict.WAIT


def judge_revoke(launch: Launch | None, subject: Subject | None) -> RevokeVerdict:
    """Decide on the scheduler's wish to revoke a task stuck in queued (rule 17).

    :param launch: the ledger row of the token that the task instance carries
    :param subject: the task instance, locked
    """
    if subject is not None and subject.state not in ("queued", "scheduled"):
        return RevokeVerdict.DECLINE
    if launch is None:
        return RevokeVerdict.NOTHING
    if launch.state is LaunchState.CLAIMED:
        return RevokeVerdict.DECLINE
    return RevokeVerdict.REVOKE if launch.unclaimed else RevokeVerdict.NOTHING


def judge_adopt(launch: Launch | None, subject: Subject) -> AdoptVerdict:
    """Decide on a task instance whose scheduler died (rule 18).

    :param launch: the ledger row of the token that the task instance carries
    :param subject: the task instance
    """
    if subject.state in ("running", "restarting"):
        return AdoptVerdict.TAKE_OVER if launch is not None and launch.open else AdoptVerdict.LEAVE
    # A claim counts even if the task instance was read before it: SQLite has no row lock to prevent that.
    if launch is not None and launch.open:
        return AdoptVerdict.TAKE_OVER
    return AdoptVerdict.HAND_BACK


def may_be_pruned(launch: Launch, subject: Subject | None, before: datetime) -> bool:
    """Whether the row of a launch may be removed from the ledger (rule 20).

    :param launch: its ledger row
    :param subject: its subject; None if it is gone
    :param before: only what ended before this time is old enough
    """
    if launch.open or launch.settled_at is None or launch.ended_at is None or launch.ended_at >= before:
        return False
    if subject is None:
        return True
    if launch.kind is LaunchKind.CALLBACK:
        # Without a launch it would be one that an executor without a ledger left.
        return subject.state in CALLBACK_FINISHED
    return subject.token != launch.token or subject.state in TASK_FINISHED


def has_expired(launch: Launch, now: datetime, patience: timedelta) -> bool:
    """Whether a launch of a callback has waited too long for a worker that claims it.

    Of a pod that exists, the backend decides first, from the time of its creation (it may be launched again):
    here the time is doubled for it.

    :param launch: its ledger row
    :param now: the present
    :param patience: how long it may wait
    """
    if launch.kind is not LaunchKind.CALLBACK or not launch.unclaimed or launch.issued_at is None:
        return False
    has_pod = launch.backend is BackendName.KUBERNETES and launch.external_id is not None
    return now - launch.issued_at > (2 * patience if has_pod else patience)
