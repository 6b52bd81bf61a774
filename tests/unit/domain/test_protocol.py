# SPDX-License-Identifier: Apache-2.0
"""The protocol's decisions, one table per question; the numbers are those of the protocol rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.domain.launch import Subject
from dispatcher.domain.lifecycle import ENDED, OPEN, UNCLAIMED, LaunchKind, LaunchState
from dispatcher.domain.protocol import (
    AdoptVerdict,
    Ending,
    Permit,
    Refusal,
    ReportVerdict,
    RevokeVerdict,
    SubmitVerdict,
    judge_adopt,
    judge_call,
    judge_callback_claim,
    judge_callback_result,
    judge_claim,
    judge_report,
    judge_revoke,
    judge_submit,
    judge_untokened,
)
from dispatcher.domain.relaunching import may_relaunch
from dispatcher.domain.wire import RefusalReason
from tests.support.launches import OWNER, build_launch

ME, OTHER = "nonce:me", "nonce:other"
BY_PROCESS = "process:host|airflow|1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT = timedelta(seconds=300)
S = LaunchState
CALLBACK = LaunchKind.CALLBACK
FINISHED = ["success", "failed", "skipped", "upstream_failed", "removed"]
TASK_STATES = [
    None, "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule",
    *FINISHED,
]  # fmt: skip
CALLBACK_STATES = ["scheduled", "pending", "queued", "running", "success", "failed"]


def _subject(launch, state="queued", **fields):
    return Subject(id=launch.subject_id, state=state, **{"token": launch.token} | fields)


def _reason(answer):
    return answer.reason if isinstance(answer, Refusal) else answer


def _launch_in(state, claimant=None, **fields):
    """Return a launch; one that was claimed has a claimant."""
    if state is S.CLAIMED and claimant is None:
        claimant = ME
    return build_launch(state=state, claimant=claimant, **fields)


class TestClaim:
    """Rules 3, 7 and 8."""

    def _judge(self, launch, subject, claimant=ME, token=None, by_header=True):
        token = token or launch.token
        return _reason(judge_claim(launch, subject, token, claimant, by_header=by_header))

    @pytest.mark.parametrize("state", TASK_STATES)
    @pytest.mark.parametrize("launch_state", sorted(UNCLAIMED))
    def test_an_unclaimed_launch(self, launch_state, state):
        launch = _launch_in(launch_state)
        expected = {"queued": Permit.CLAIM, "running": Permit.PASS}.get(
            state, RefusalReason.REVOKED if state in FINISHED else RefusalReason.SUPERSEDED
        )
        assert self._judge(launch, _subject(launch, state)) == expected

    @pytest.mark.parametrize("by_header", [True, False])
    @pytest.mark.parametrize("claimant", [ME, OTHER])
    @pytest.mark.parametrize("state", TASK_STATES)
    def test_a_claimed_launch(self, state, claimant, by_header):
        launch = _launch_in(S.CLAIMED)
        expected = RefusalReason.CONSUMED
        if state == "running" and claimant == ME:
            expected = Permit.REPEAT
        elif state == "running" and not by_header:
            expected = Permit.PASS  # Airflow's own answer is what stock workers take as a duplicate
        assert self._judge(launch, _subject(launch, state), claimant, by_header=by_header) == expected

    @pytest.mark.parametrize("was_claimed", [True, False])
    @pytest.mark.parametrize("state", TASK_STATES)
    @pytest.mark.parametrize("launch_state", sorted(ENDED))
    def test_an_ended_launch_is_refused(self, launch_state, state, was_claimed):
        launch = _launch_in(launch_state, ME if was_claimed else None)
        expected = RefusalReason.CONSUMED if was_claimed else RefusalReason.SUPERSEDED
        if launch_state is S.REVOKED:
            expected = RefusalReason.REVOKED
        assert self._judge(launch, _subject(launch, state)) == expected

    @pytest.mark.parametrize("launch_state", LaunchState)
    @pytest.mark.parametrize("current", [None, "another"])
    @pytest.mark.parametrize("state", TASK_STATES)
    def test_a_token_that_the_task_does_not_carry_is_refused(self, launch_state, state, current):
        launch = _launch_in(launch_state)
        expected = RefusalReason.REVOKED if launch_state is S.REVOKED else RefusalReason.SUPERSEDED
        assert self._judge(launch, _subject(launch, state, token=current)) == expected

    def test_a_token_without_a_launch_is_judged_by_equality(self):
        launch = build_launch()
        assert self._judge(None, _subject(launch), token=launch.token) is Permit.PASS
        assert self._judge(None, _subject(launch), token="old") is RefusalReason.SUPERSEDED

    def test_a_task_that_is_gone(self):
        assert self._judge(None, None, token="any") is Permit.PASS
        assert self._judge(build_launch(), None) is RefusalReason.SUPERSEDED
        assert self._judge(_launch_in(S.REVOKED), None) is RefusalReason.REVOKED

    def test_a_token_of_another_task_instance_is_refused(self):
        """Clearing a running task changes its UUID and keeps its token."""
        launch = build_launch()
        subject = Subject(id="another", state="queued", token=launch.token)
        assert self._judge(launch, subject) is RefusalReason.SUPERSEDED

    @pytest.mark.parametrize("launch_state", LaunchState)
    def test_no_answer_tells_the_current_token(self, launch_state):
        launch = _launch_in(launch_state)
        answer = judge_claim(launch, _subject(launch, token="secret"), launch.token, ME, by_header=True)
        assert "secret" not in answer.message


class TestLaterCall:
    """Rules 8 to 10."""

    def _judge(self, launch, subject, claimant=ME, token=None):
        return _reason(judge_call(launch, subject, token or launch.token, claimant))

    @pytest.mark.parametrize("state", TASK_STATES)
    def test_the_claimant_passes_in_every_state(self, state):
        launch = _launch_in(S.CLAIMED)
        assert self._judge(launch, _subject(launch, state)) is Permit.PASS

    @pytest.mark.parametrize(
        ("launch_state", "was_claimed"),
        [(state, True) for state in LaunchState]
        + [(state, False) for state in LaunchState if state is not S.CLAIMED],
    )
    @pytest.mark.parametrize("claimant", [ME, OTHER, None])
    def test_by_state_and_claimant(self, launch_state, claimant, was_claimed):
        launch = _launch_in(launch_state, ME if was_claimed else None)
        expected = Permit.PASS
        if launch_state is S.REVOKED:
            expected = RefusalReason.REVOKED
        elif launch_state is S.SUPERSEDED:
            expected = RefusalReason.SUPERSEDED
        elif was_claimed and claimant == OTHER:
            expected = RefusalReason.CONSUMED
        assert self._judge(launch, _subject(launch, "running"), claimant) == expected

    @pytest.mark.parametrize("claimant", [ME, OTHER, None])
    @pytest.mark.parametrize("current", [None, "another"])
    def test_a_token_that_the_task_does_not_carry_is_refused(self, claimant, current):
        launch = _launch_in(S.CLAIMED)
        subject = _subject(launch, "running", token=current)
        assert self._judge(launch, subject, claimant) is RefusalReason.SUPERSEDED

    def test_a_token_without_a_launch_is_judged_by_equality(self):
        launch = build_launch()
        assert self._judge(None, _subject(launch, "running"), token=launch.token) is Permit.PASS
        assert self._judge(None, _subject(launch, "running"), token="old") is RefusalReason.SUPERSEDED

    def test_a_task_that_is_gone(self):
        assert self._judge(None, None, token="any") is Permit.PASS
        assert self._judge(_launch_in(S.CLAIMED), None) is RefusalReason.SUPERSEDED


class TestWithoutToken:
    """Rule 11."""

    @pytest.mark.parametrize("is_run", [True, False])
    @pytest.mark.parametrize("launch_state", LaunchState)
    def test_presented_leaves_it_to_airflow(self, launch_state, is_run):
        launch = _launch_in(launch_state)
        assert judge_untokened(launch, is_run=is_run, required=False) is Permit.PASS

    @pytest.mark.parametrize("is_run", [True, False])
    def test_required_leaves_alone_what_is_not_ours(self, is_run):
        assert judge_untokened(None, is_run=is_run, required=True) is Permit.PASS

    @pytest.mark.parametrize("launch_state", LaunchState)
    def test_required_starts_unclaimed_launches_by_their_token_only(self, launch_state):
        expected = RefusalReason.REQUIRED if launch_state in UNCLAIMED else Permit.PASS
        assert _reason(judge_untokened(_launch_in(launch_state), is_run=True, required=True)) == expected

    @pytest.mark.parametrize("claimant", [ME, BY_PROCESS])
    @pytest.mark.parametrize("launch_state", LaunchState)
    def test_required_later_calls_of_guarded_workers(self, launch_state, claimant):
        launch = _launch_in(launch_state, claimant)
        guarded = launch_state is S.CLAIMED and claimant == ME
        expected = RefusalReason.REQUIRED if guarded else Permit.PASS
        assert _reason(judge_untokened(launch, is_run=False, required=True)) == expected


class TestCallbackClaim:
    """Rule 19."""

    def _judge(self, launch, subject, claimant=ME, claimed_elsewhere=False):
        return _reason(judge_callback_claim(launch, subject, claimant, claimed_elsewhere=claimed_elsewhere))

    @pytest.mark.parametrize("state", CALLBACK_STATES)
    @pytest.mark.parametrize("launch_state", sorted(UNCLAIMED))
    @pytest.mark.parametrize("claimed_elsewhere", [True, False])
    def test_an_unclaimed_launch(self, launch_state, state, claimed_elsewhere):
        launch = _launch_in(launch_state, kind=CALLBACK)
        expected = Permit.CLAIM if state not in ("success", "failed") else RefusalReason.REVOKED
        if claimed_elsewhere:
            expected = RefusalReason.CONSUMED
        subject = _subject(launch, state, token=None)
        assert self._judge(launch, subject, claimed_elsewhere=claimed_elsewhere) == expected

    @pytest.mark.parametrize("claimant", [ME, OTHER])
    def test_a_claimed_launch(self, claimant):
        launch = _launch_in(S.CLAIMED, kind=CALLBACK)
        expected = Permit.REPEAT if claimant == ME else RefusalReason.CONSUMED
        assert self._judge(launch, _subject(launch, "running"), claimant) == expected

    @pytest.mark.parametrize("launch_state", sorted(ENDED))
    @pytest.mark.parametrize("was_claimed", [True, False])
    def test_an_ended_launch_is_refused(self, launch_state, was_claimed):
        launch = _launch_in(launch_state, ME if was_claimed else None, kind=CALLBACK)
        expected = RefusalReason.REVOKED if launch_state is S.REVOKED else RefusalReason.SUPERSEDED
        if was_claimed:
            expected = RefusalReason.CONSUMED
        assert self._judge(launch, _subject(launch, "queued")) == expected

    def test_an_unknown_token_and_that_of_another_callback(self):
        launch = build_launch(kind=CALLBACK)
        assert self._judge(None, _subject(launch)) is RefusalReason.SUPERSEDED
        assert self._judge(launch, Subject(id="another", state="queued")) is RefusalReason.SUPERSEDED


class TestCallbackResult:
    @pytest.mark.parametrize("claimant", [ME, OTHER])
    @pytest.mark.parametrize("launch_state", LaunchState)
    def test_only_the_claimant_reports(self, launch_state, claimant):
        launch = _launch_in(launch_state, ME, kind=CALLBACK)
        answer = _reason(judge_callback_result(launch, _subject(launch, "running"), claimant))
        if claimant == OTHER:
            assert answer is RefusalReason.CONSUMED
        elif launch_state is S.CLAIMED:
            assert answer is Permit.CLAIM
        elif launch_state in (S.SUCCEEDED, S.FAILED):
            assert answer is Permit.REPEAT
        elif launch_state is S.REVOKED:
            assert answer is RefusalReason.REVOKED
        else:
            assert answer is RefusalReason.SUPERSEDED

    def test_nobody_reports_what_nobody_claimed(self):
        launch = build_launch(kind=CALLBACK)
        assert _reason(judge_callback_result(launch, _subject(launch), ME)) is RefusalReason.CONSUMED

    def test_an_unknown_token_and_that_of_another_callback(self):
        launch = _launch_in(S.CLAIMED, kind=CALLBACK)
        other = Subject(id="another", state="running")
        assert _reason(judge_callback_result(None, other, ME)) is RefusalReason.SUPERSEDED
        assert _reason(judge_callback_result(launch, other, ME)) is RefusalReason.SUPERSEDED


class TestSubmit:
    """Rule 4; rule 19 for callbacks."""

    @pytest.mark.parametrize("state", TASK_STATES)
    @pytest.mark.parametrize("launch_state", sorted(UNCLAIMED))
    @pytest.mark.parametrize("current", [True, False])
    def test_a_task(self, launch_state, state, current):
        launch = _launch_in(launch_state)
        subject = _subject(launch, state, token=launch.token if current else "another")
        if not current or state in FINISHED:
            expected = SubmitVerdict.DROP
        else:
            expected = SubmitVerdict.SEND if state == "queued" else SubmitVerdict.FORGET
        assert judge_submit(launch, subject, OWNER) is expected

    @pytest.mark.parametrize("state", CALLBACK_STATES)
    @pytest.mark.parametrize("claimed_elsewhere", [True, False])
    def test_a_callback(self, state, claimed_elsewhere):
        launch = build_launch(kind=CALLBACK)
        useless = claimed_elsewhere or state in ("success", "failed")
        verdict = judge_submit(
            launch, _subject(launch, state, token=None), OWNER, claimed_elsewhere=claimed_elsewhere
        )
        assert verdict is (SubmitVerdict.DROP if useless else SubmitVerdict.SEND)

    @pytest.mark.parametrize("kind", LaunchKind)
    def test_a_subject_that_is_gone(self, kind):
        assert judge_submit(build_launch(kind=kind), None, OWNER) is SubmitVerdict.DROP

    @pytest.mark.parametrize("launch_state", sorted(set(LaunchState) - UNCLAIMED))
    @pytest.mark.parametrize("state", TASK_STATES)
    def test_what_is_claimed_or_ended_is_never_dropped(self, launch_state, state):
        launch = _launch_in(launch_state)
        assert judge_submit(launch, _subject(launch, state), OWNER) is SubmitVerdict.FORGET
        assert judge_submit(launch, None, OWNER) is SubmitVerdict.FORGET

    @pytest.mark.parametrize("state", TASK_STATES)
    def test_what_another_scheduler_owns_is_left_to_it(self, state):
        launch = build_launch(scheduler_job_id="2")
        assert judge_submit(launch, _subject(launch, state), OWNER) is SubmitVerdict.FORGET
        assert judge_submit(None, _subject(launch, state), OWNER) is SubmitVerdict.FORGET


class TestReport:
    """Rules 13 and 14."""

    FRESH, STILL = NOW - timedelta(seconds=299), NOW - timedelta(seconds=301)

    def _judge(self, launch, subject, proven=False):
        return judge_report(launch, subject, Ending(ok=True, proven=proven), NOW, TIMEOUT)

    @pytest.mark.parametrize("proven", [True, False])
    @pytest.mark.parametrize("state", TASK_STATES)
    def test_an_unclaimed_launch(self, state, proven):
        launch = build_launch(state=S.SUBMITTED)
        subject = _subject(launch, state, heartbeat_at=self.FRESH)
        expected = {"queued": ReportVerdict.EMIT, "running": ReportVerdict.WAIT}
        assert self._judge(launch, subject, proven) is expected.get(state, ReportVerdict.SETTLE)

    @pytest.mark.parametrize("proven", [True, False])
    @pytest.mark.parametrize("state", TASK_STATES)
    def test_a_claimed_launch(self, state, proven):
        launch = _launch_in(S.CLAIMED)
        subject = _subject(launch, state, heartbeat_at=self.FRESH)
        expected = {
            "restarting": ReportVerdict.EMIT,
            "running": ReportVerdict.EMIT if proven else ReportVerdict.WAIT,
        }
        assert self._judge(launch, subject, proven) is expected.get(state, ReportVerdict.SETTLE)

    @pytest.mark.parametrize("launch_state", [S.SUBMITTED, S.CLAIMED])
    @pytest.mark.parametrize(
        ("heartbeat_at", "verdict"),
        [
            (FRESH, ReportVerdict.WAIT),
            (NOW - TIMEOUT, ReportVerdict.WAIT),
            (STILL, ReportVerdict.EMIT),
            (None, ReportVerdict.EMIT),
        ],
    )
    def test_an_unproven_end_waits_for_the_heartbeat_to_stand_still(
        self, launch_state, heartbeat_at, verdict
    ):
        launch = _launch_in(launch_state)
        assert self._judge(launch, _subject(launch, "running", heartbeat_at=heartbeat_at)) is verdict

    @pytest.mark.parametrize("launch_state", LaunchState)
    @pytest.mark.parametrize("state", TASK_STATES)
    def test_nothing_is_told_of_a_launch_that_is_not_current(self, launch_state, state):
        launch = _launch_in(launch_state)
        for changes in ({"token": "another"}, {"token": None}, {"ours": False}):
            subject = _subject(launch, state, heartbeat_at=self.STILL, **changes)
            assert self._judge(launch, subject, proven=True) is ReportVerdict.SETTLE
        assert self._judge(launch, None, proven=True) is ReportVerdict.SETTLE

    def test_the_match_is_by_token_and_not_by_uuid(self):
        launch = _launch_in(S.CLAIMED)
        subject = Subject(id="new", state="restarting", token=launch.token)
        assert self._judge(launch, subject, proven=True) is ReportVerdict.EMIT

    @pytest.mark.parametrize("state", CALLBACK_STATES)
    def test_a_callback_is_told_until_it_is_finished(self, state):
        launch = _launch_in(S.CLAIMED, kind=CALLBACK)
        expected = ReportVerdict.SETTLE if state in ("success", "failed") else ReportVerdict.EMIT
        assert self._judge(launch, _subject(launch, state, token=None)) is expected


class TestRevoke:
    """Rule 17."""

    @pytest.mark.parametrize("launch_state", [None, *LaunchState])
    @pytest.mark.parametrize("state", ["absent", *TASK_STATES])
    def test_by_launch_and_task(self, launch_state, state):
        launch = None if launch_state is None else _launch_in(launch_state)
        subject = None if state == "absent" else _subject(launch or build_launch(), state)
        verdict = judge_revoke(launch, subject)
        if state not in ("absent", "queued", "scheduled") or launch_state is S.CLAIMED:
            assert verdict is RevokeVerdict.DECLINE
        elif launch_state in UNCLAIMED:
            assert verdict is RevokeVerdict.REVOKE
        else:
            assert verdict is RevokeVerdict.NOTHING


class TestAdopt:
    """Rule 18."""

    @pytest.mark.parametrize("launch_state", [None, *LaunchState])
    @pytest.mark.parametrize("state", ["running", "restarting"])
    def test_a_running_task_is_never_handed_back(self, launch_state, state):
        launch = None if launch_state is None else _launch_in(launch_state)
        verdict = judge_adopt(launch, _subject(launch or build_launch(), state))
        assert verdict is (AdoptVerdict.TAKE_OVER if launch_state in OPEN else AdoptVerdict.LEAVE)

    @pytest.mark.parametrize("launch_state", [None, *LaunchState])
    def test_a_queued_task_is_taken_over_where_its_launch_is_open(self, launch_state):
        # Claimed counts too: the task instance may have been read just before the claim set it RUNNING.
        launch = None if launch_state is None else _launch_in(launch_state)
        verdict = judge_adopt(launch, _subject(launch or build_launch(), "queued"))
        assert verdict is (AdoptVerdict.TAKE_OVER if launch_state in OPEN else AdoptVerdict.HAND_BACK)


class TestRelaunch:
    """Rule 6."""

    @pytest.mark.parametrize("launch_state", LaunchState)
    @pytest.mark.parametrize("state", TASK_STATES)
    @pytest.mark.parametrize("current", [True, False])
    def test_a_task(self, launch_state, state, current):
        launch = _launch_in(launch_state)
        subject = _subject(launch, state, token=launch.token if current else "another")
        assert may_relaunch(launch, subject) == (launch_state in UNCLAIMED and state == "queued" and current)

    @pytest.mark.parametrize("launch_state", LaunchState)
    @pytest.mark.parametrize("state", CALLBACK_STATES)
    def test_a_callback(self, launch_state, state):
        launch = _launch_in(launch_state, kind=CALLBACK)
        expected = launch_state in UNCLAIMED and state not in ("success", "failed")
        assert may_relaunch(launch, _subject(launch, state, token=None)) == expected

    def test_a_subject_that_is_gone(self):
        assert not may_relaunch(build_launch(), None)
