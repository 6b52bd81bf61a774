# SPDX-License-Identifier: Apache-2.0
"""The life of a launch, against the table of its documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.domain.launch import claimant_from_nonce, claimant_from_process
from dispatcher.domain.lifecycle import (
    ENDED,
    OPEN,
    TRANSITIONS,
    UNCLAIMED,
    Instruction,
    LaunchEvent,
    LaunchKind,
    LaunchState,
    TransitionError,
    advance,
    sources,
    target,
)
from tests.support.launches import build_launch

S, E = LaunchState, LaunchEvent
TASK, CALLBACK = LaunchKind.TASK, LaunchKind.CALLBACK

# Submitted to submitted is a resend (rule 6).
NEXT_STATES = {
    S.ISSUED: {S.SUBMITTED, S.CLAIMED, S.SUPERSEDED, S.REVOKED, S.DROPPED, S.LOST},
    S.SUBMITTED: {S.SUBMITTED, S.CLAIMED, S.FAILED, S.SUPERSEDED, S.REVOKED, S.DROPPED, S.LOST},
    S.CLAIMED: {S.SUCCEEDED, S.FAILED, S.SUPERSEDED, S.REVOKED, S.LOST},
    S.SUCCEEDED: set(),
    S.FAILED: set(),
    S.SUPERSEDED: set(),
    S.REVOKED: set(),
    S.DROPPED: set(),
    S.LOST: set(),
}


def _next_states(state, kind):
    return {target(event) for event in LaunchEvent if state in sources(event, kind)}


@pytest.mark.parametrize("state", LaunchState)
def test_what_may_follow_which_state(state):
    assert _next_states(state, TASK) == NEXT_STATES[state]


@pytest.mark.parametrize("state", LaunchState)
def test_a_claimed_callback_is_never_superseded(state):
    """Rule 3."""
    expected = NEXT_STATES[state] - ({S.SUPERSEDED} if state is S.CLAIMED else set())
    assert _next_states(state, CALLBACK) == expected


def test_every_event_has_its_transition():
    assert set(TRANSITIONS) == set(LaunchEvent)


def test_the_groups_of_states():
    assert {S.ISSUED, S.SUBMITTED} == UNCLAIMED
    assert UNCLAIMED | {S.CLAIMED} == OPEN
    assert set(LaunchState) == OPEN | ENDED
    assert not OPEN & ENDED


@pytest.mark.parametrize("kind", LaunchKind)
@pytest.mark.parametrize("state", LaunchState)
@pytest.mark.parametrize("event", LaunchEvent)
def test_every_event_in_every_state(event, state, kind):
    if state in sources(event, kind):
        step = advance(state, event, kind)
        assert step.state is target(event)
        assert step.state in NEXT_STATES[state]
    else:
        with pytest.raises(TransitionError, match=f"{kind.value} launch in state {state.value}"):
            advance(state, event, kind)


@pytest.mark.parametrize("event", LaunchEvent)
def test_what_is_to_be_done(event):
    state = next(iter(sources(event)))
    step = advance(state, event)
    ends = step.state in ENDED
    assert (Instruction.SEND in step.instructions) == (event is E.SUBMIT)
    assert (Instruction.FREE_SLOT in step.instructions) == ends
    reported = {E.END_OK, E.END_FAILED, E.OPERATOR_REVOKE, E.EXPIRE, E.LOSE}
    assert (Instruction.REPORT in step.instructions) == (event in reported)
    assert (Instruction.REMOVE_ARTEFACT in step.instructions) == (ends and event is not E.LOSE)
    if Instruction.REPORT in step.instructions and Instruction.REMOVE_ARTEFACT in step.instructions:
        # Rule 14: what is reported is removed afterwards.
        report, remove = map(step.instructions.index, (Instruction.REPORT, Instruction.REMOVE_ARTEFACT))
        assert report < remove


@given(events=st.lists(st.sampled_from(LaunchEvent), max_size=12), kind=st.sampled_from(LaunchKind))
def test_whatever_happens_a_launch_is_claimed_and_ends_at_most_once(events, kind):
    state, visited = S.ISSUED, [S.ISSUED]
    for event in events:
        try:
            state = advance(state, event, kind).state
        except TransitionError:
            continue
        visited.append(state)
    assert visited.count(S.CLAIMED) <= 1
    assert sum(state in ENDED for state in visited) <= 1
    assert all(state not in ENDED for state in visited[:-1])
    if S.CLAIMED in visited:
        assert S.DROPPED not in visited


@pytest.mark.parametrize("state", LaunchState)
def test_a_launch_knows_where_it_is(state):
    launch = build_launch(state=state)
    assert launch.open == (state in OPEN)
    assert launch.unclaimed == (state in UNCLAIMED)


@pytest.mark.parametrize(
    ("claimant", "was_claimed", "with_nonce"),
    [
        (None, False, False),
        (claimant_from_nonce("n"), True, True),
        (claimant_from_process("host", "airflow", 7), True, False),
        (claimant_from_process("nonce:", "nonce:", 7), True, False),
    ],
)
def test_a_launch_knows_its_claimant(claimant, was_claimed, with_nonce):
    """Rules 7 and 11."""
    launch = build_launch(claimant=claimant)
    assert (launch.was_claimed, launch.claimed_with_nonce) == (was_claimed, with_nonce)


def test_claimants_of_a_process_differ_by_each_part():
    names = {
        claimant_from_process(*parts)
        for parts in [("a", "b", 1), ("x", "b", 1), ("a", "x", 1), ("a", "b", 2)]
    }
    assert len(names) == 4
