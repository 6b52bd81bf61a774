# SPDX-License-Identifier: Apache-2.0
"""Which launches may leave the ledger (rule 20)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.domain.launch import Subject
from dispatcher.domain.lifecycle import ENDED, LaunchKind, LaunchState
from dispatcher.domain.protocol import may_be_pruned
from tests.support.launches import build_launch

BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
OLD = BEFORE - timedelta(seconds=1)
TASK_STATES = {
    None: False,
    "scheduled": False,
    "queued": False,
    "running": False,
    "restarting": False,
    "deferred": False,
    "up_for_retry": False,
    "up_for_reschedule": False,
    "success": True,
    "failed": True,
    "skipped": True,
    "upstream_failed": True,
    "removed": True,
}
CALLBACK_STATES = {
    "scheduled": False,
    "pending": False,
    "queued": False,
    "running": False,
    "success": True,
    "failed": True,
}


def old_launch(**columns):
    values = {"state": LaunchState.SUCCEEDED, "ended_at": OLD, "settled_at": OLD}
    return build_launch(**values | columns)


@pytest.mark.parametrize("state", LaunchState)
def test_only_what_has_ended(state):
    assert may_be_pruned(old_launch(state=state), None, BEFORE) == (state in ENDED)


@pytest.mark.parametrize(
    "columns",
    [{"settled_at": None}, {"ended_at": None}, {"ended_at": BEFORE}],
    ids=["not settled", "no end", "young"],
)
def test_only_what_is_settled_and_old(columns):
    assert not may_be_pruned(old_launch(**columns), None, BEFORE)


@pytest.mark.parametrize(("state", "expected"), TASK_STATES.items(), ids=str)
def test_a_task_that_carries_the_token_must_be_finished(state, expected):
    launch = old_launch()
    assert may_be_pruned(launch, Subject(id="ti", state=state, token=launch.token), BEFORE) == expected
    assert may_be_pruned(launch, Subject(id="ti", state=state, token="another"), BEFORE)


@pytest.mark.parametrize(("state", "expected"), CALLBACK_STATES.items(), ids=str)
def test_a_callback_must_have_ended(state, expected):
    launch = old_launch(kind=LaunchKind.CALLBACK)
    assert may_be_pruned(launch, Subject(id=launch.subject_id, state=state), BEFORE) == expected
