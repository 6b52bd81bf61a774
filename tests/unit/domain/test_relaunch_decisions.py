# SPDX-License-Identifier: Apache-2.0
"""When and how often a launch that never ran is replaced (rule 6); see also ``test_protocol``."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.domain.launch import Subject
from dispatcher.domain.lifecycle import ENDED, OPEN, LaunchKind, LaunchState
from dispatcher.domain.protocol import Ending, ReportVerdict, judge_report
from dispatcher.domain.relaunching import may_relaunch, relaunch_reason, relaunches
from tests.support.launches import build_launch
from tests.support.rows import utcnow


def chain(*reasons):
    return [build_launch(sequence=number, route_reason=reason) for number, reason in enumerate(reasons)]


@pytest.mark.parametrize(
    ("reasons", "count"),
    [
        ([], 0),
        (["rule 1"], 0),
        (["rule 1", "relaunch 1: rule 1"], 1),
        (["rule 1", "relaunch 1: rule 1", "relaunch 2: rule 1"], 2),
        (["rule 1", "relaunch 1: rule 1", "rule 1"], 0),
        (["rule 1", "relaunch 1: rule 1", "rule 1", "relaunch 1: rule 1"], 1),
    ],
    ids=["none", "first", "one", "two", "queued anew", "one after queued anew"],
)
def test_relaunches_in_a_row_are_counted(reasons, count):
    assert relaunches(chain(*reasons)) == count


def test_the_reason_of_the_route_is_kept_and_counted():
    first = build_launch(route_reason="rule 2: pool=gpu")
    second = build_launch(route_reason=relaunch_reason(first, 1))
    third = build_launch(route_reason=relaunch_reason(second, 2))
    assert third.route_reason == "relaunch 2: rule 2: pool=gpu"
    assert relaunches([first, second, third]) == 2


@pytest.mark.parametrize("state", LaunchState)
@pytest.mark.parametrize("claimed", [False, True], ids=["never claimed", "claimed"])
def test_another_launch_of_the_callback_decides(state, claimed):
    launch = build_launch(kind=LaunchKind.CALLBACK, state=LaunchState.SUBMITTED)
    other = build_launch(kind=LaunchKind.CALLBACK, state=state, claimant="nonce:x" if claimed else None)
    subject = Subject(id=launch.subject_id, state="queued")
    assert may_relaunch(launch, subject)
    assert may_relaunch(launch, subject, others=[other]) == (state in ENDED and not claimed)


@pytest.mark.parametrize("state", sorted(OPEN | {LaunchState.FAILED, LaunchState.SUPERSEDED}))
def test_a_launch_of_a_callback_that_was_replaced_has_nothing_to_tell(state):
    old = build_launch(kind=LaunchKind.CALLBACK, state=LaunchState.SUPERSEDED)
    new = build_launch(kind=LaunchKind.CALLBACK, state=state, subject_id=old.subject_id)
    verdict = judge_report(
        old,
        Subject(id=old.subject_id, state="queued"),
        Ending(ok=False, proven=True),
        utcnow(),
        timedelta(minutes=5),
        others=[new],
    )
    assert verdict is ReportVerdict.SETTLE
