# SPDX-License-Identifier: Apache-2.0
"""What the end of one of several launches of a callback says (rule 19)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.domain.launch import Launch, Subject
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.domain.protocol import Ending, ReportVerdict, callback_ending, judge_report

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DROPPED = Launch(
    sequence=2,
    token="newer",
    kind=LaunchKind.CALLBACK,
    subject_id="callback",
    state=LaunchState.DROPPED,
    backend=BackendName.CELERY,
    queue="callbacks",
)
RUNS = DROPPED._replace(sequence=1, token="older", state=LaunchState.CLAIMED, claimant="nonce:one")
OWN = Ending(ok=False, proven=True, reason="no longer wanted")


def verdict(launch, others, state="running"):
    subject = Subject(id="callback", state=state)
    return judge_report(launch, subject, OWN, NOW, timedelta(seconds=300), others=others)


@pytest.mark.parametrize("state", [LaunchState.ISSUED, LaunchState.SUBMITTED, LaunchState.CLAIMED])
def test_it_tells_nothing_while_another_launch_may_still_run(state):
    assert verdict(DROPPED, [RUNS._replace(state=state)]) is ReportVerdict.WAIT


def test_its_own_end_is_written_meanwhile():
    assert verdict(DROPPED._replace(state=LaunchState.SUBMITTED), [RUNS]) is ReportVerdict.EMIT


def test_the_launch_that_ran_waits_for_nobody():
    ended = RUNS._replace(state=LaunchState.FAILED)
    assert verdict(ended, [DROPPED._replace(state=LaunchState.SUBMITTED)]) is ReportVerdict.EMIT


def test_it_is_settled_once_the_callback_has_ended():
    assert verdict(DROPPED, [RUNS], state="success") is ReportVerdict.SETTLE


@pytest.mark.parametrize(("state", "ok"), [(LaunchState.SUCCEEDED, True), (LaunchState.FAILED, False)])
def test_it_repeats_what_the_one_that_ran_came_to(state, ok):
    ran = RUNS._replace(state=state, end_reason="as it ended")
    assert verdict(DROPPED, [ran], state="queued") is ReportVerdict.EMIT
    assert callback_ending(DROPPED, OWN, [ran]) == Ending(ok=ok, proven=True, reason="as it ended")


def test_without_one_that_ran_its_own_end_counts():
    never_ran = RUNS._replace(state=LaunchState.LOST, claimant=None)
    assert callback_ending(DROPPED, OWN, [never_ran]) == OWN
    assert callback_ending(RUNS._replace(state=LaunchState.FAILED), OWN, [DROPPED]) == OWN
