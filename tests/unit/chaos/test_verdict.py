# SPDX-License-Identifier: Apache-2.0
"""Each violation of an invariant is found in the evidence of a run, and a run without one is not accused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.records import Body, Callback, Evidence, Launch, Step, Task
from tests.chaos.verdict import judge

TASK = ("chaos", "run_1", "work", 0, 1)
NEXT_TRY = ("chaos", "run_1", "work", 0, 2)


def body(token="a", place="worker 1", began=10.0, ended=12.0, subject=TASK, kind="task"):
    return Body(kind=kind, subject=subject, token=token, place=place, began=began, ended=ended)


def launch(token="a", state="succeeded", kind="task", subject_id="t"):
    return Launch(token=token, kind=kind, subject_id=subject_id, state=state)


def claim(token="a", claimant="nonce:1", before="submitted"):
    return Step(token=token, before=before, after="claimed", claimant=claimant)


@pytest.fixture
def evidence():
    """One task and one callback that ran as they should, and two schedulers that hold nothing."""
    return Evidence(
        launches=[launch(), launch("c", kind="callback", subject_id="call")],
        steps=[
            Step(token="a", before=None, after="issued", claimant=None),
            Step(token="a", before="issued", after="submitted", claimant=None),
            claim(),
            Step(token="a", before="claimed", after="succeeded", claimant="nonce:1"),
            Step(token="a", before="succeeded", after="succeeded", claimant="nonce:1"),
            claim("c", "nonce:2"),
        ],
        bodies=[body(), body("c", "pod c", kind="callback", subject=())],
        tasks=[Task(subject=TASK, state="success")],
        callbacks=[Callback(id="call", state="success")],
        slots={"scheduler 1": 0, "scheduler 2": 0},
    )


def found(evidence):
    return {name: count for name, count in judge(evidence).counts().items() if count}


def test_a_run_without_a_violation_is_not_accused(evidence):
    assert found(evidence) == {}
    assert list(judge(evidence).findings()) == []


def test_the_same_claimant_may_claim_again(evidence):
    evidence.steps.append(claim(before="claimed"))
    assert found(evidence) == {}


def test_two_claimants_of_one_launch(evidence):
    evidence.steps.insert(3, claim(claimant="nonce:3", before="claimed"))
    assert found(evidence) == {"double_claims": 1}
    assert "nonce:3" in next(judge(evidence).findings())


def test_two_bodies_under_one_token_tell_of_two_claims(evidence):
    evidence.bodies.append(body(place="worker 2", subject=NEXT_TRY))
    assert found(evidence) == {"double_claims": 1}


def test_two_launches_of_one_callback_that_were_claimed(evidence):
    evidence.launches.append(launch("d", "failed", "callback", "call"))
    evidence.steps.append(claim("d", "nonce:4"))
    assert found(evidence) == {"double_claims": 1}


def test_a_second_launch_of_a_callback_that_nobody_claimed_is_none(evidence):
    evidence.launches.append(launch("d", "dropped", "callback", "call"))
    evidence.steps.append(Step(token="d", before="issued", after="dropped", claimant=None))
    assert found(evidence) == {}


@pytest.mark.parametrize("kind", ["task", "callback"])
def test_a_body_that_runs_again_after_its_end(evidence, kind):
    if kind == "task":
        evidence.bodies.append(body("b", "worker 2", began=20.0, ended=21.0))
    else:
        evidence.launches.append(launch("d", kind="callback", subject_id="call"))
        evidence.bodies.append(body("d", "pod d", 20.0, 21.0, kind="callback", subject=()))
    evidence.killed["worker 1"] = evidence.killed["pod c"] = 15.0
    assert found(evidence) == {"double_runs": 1}


@pytest.mark.parametrize(
    ("killed", "violations"),
    [
        ({"worker 1": 11.0}, {}),
        ({}, {"double_runs": 1}),
        ({"worker 2": 11.0}, {"double_runs": 1}),
        ({"worker 1": 30.0}, {"double_runs": 1}),
    ],
    ids=["died in it", "nobody was killed", "another was killed", "killed only after the second began"],
)
def test_a_body_that_runs_again_is_excused_by_its_death_alone(evidence, killed, violations):
    evidence.bodies[0] = body(ended=None)
    evidence.bodies.append(body("b", "worker 3", began=20.0, ended=21.0))
    evidence.killed = killed
    assert found(evidence) == violations


def test_the_first_of_three_runs_excuses_only_the_second(evidence):
    evidence.bodies[0] = body(ended=None)
    evidence.bodies += [body("b", "worker 3", 20.0, 21.0), body("d", "worker 3", 30.0, 31.0)]
    evidence.killed["worker 1"] = 11.0
    assert found(evidence) == {"double_runs": 1}


def test_the_next_try_is_no_double_run(evidence):
    evidence.bodies.append(body("b", "worker 2", 20.0, 21.0, subject=NEXT_TRY))
    assert found(evidence) == {}


@pytest.mark.parametrize("state", ["issued", "submitted", "claimed"])
def test_a_launch_that_is_open_at_the_end(evidence, state):
    evidence.launches.append(launch("b", state))
    assert found(evidence) == {"open_at_end": 1}


@pytest.mark.parametrize("state", ["scheduled", "pending", "queued", "running"])
def test_a_callback_that_did_not_end(evidence, state):
    evidence.callbacks.append(Callback(id="stuck", state=state))
    assert found(evidence) == {"stuck_callbacks": 1}


@pytest.mark.parametrize("state", [None, "queued", "running", "up_for_retry"])
def test_a_task_that_did_not_end(evidence, state):
    evidence.tasks.append(Task(subject=NEXT_TRY, state=state))
    assert found(evidence) == {"open_tasks": 1}


@pytest.mark.parametrize(("slots", "leaked"), [(2, 2), (None, 1)], ids=["two held", "no answer"])
def test_slots_that_are_held_for_nothing(evidence, slots, leaked):
    evidence.slots["scheduler 2"] = slots
    assert found(evidence) == {"slots_leaked": leaked}


def test_successes_of_what_did_not_come_to_its_end(evidence):
    evidence.bodies = [replace(one, ended=None) for one in evidence.bodies]
    assert found(evidence) == {"false_successes": 2}


def test_failures_need_no_body(evidence):
    evidence.bodies = []
    evidence.tasks = [Task(subject=TASK, state="failed")]
    evidence.callbacks = [Callback(id="call", state="failed")]
    assert found(evidence) == {}


@pytest.mark.parametrize(
    ("killed", "violations"), [({}, {"false_failures": 1}), ({"pod c": 13.0}, {})], ids=["alive", "killed"]
)
def test_a_failure_of_a_callback_that_came_to_its_end(evidence, killed, violations):
    evidence.callbacks = [Callback(id="call", state="failed")]
    evidence.killed = killed
    assert found(evidence) == violations


def test_a_step_that_the_transitions_table_does_not_know(evidence):
    evidence.steps.append(Step(token="a", before="succeeded", after="claimed", claimant="nonce:1"))
    assert found(evidence) == {"illegal_steps": 1}
