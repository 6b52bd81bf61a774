# SPDX-License-Identifier: Apache-2.0
"""The invariants, checked on the evidence of a run. Pure: no import of Airflow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import OPEN, TRANSITIONS, LaunchState

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from tests.chaos.records import Body, Evidence

TASK_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
CALLBACK_ENDED = frozenset({"success", "failed"})


@dataclass(slots=True)
class Verdict:
    """What was violated: one line for people per violation.

    :param double_claims: launches or callbacks that two claimants won
    :param double_runs: bodies that ran again under one try although the first one's process was not killed
    :param open_at_end: launches that have not ended
    :param stuck_callbacks: callbacks that have not ended
    :param slots_leaked: slots that are held for nothing
    :param open_tasks: task instances that have not ended
    :param false_successes: successes of tasks and callbacks whose body never came to its end
    :param illegal_steps: steps of a launch that the transitions table does not know
    :param false_failures: failed callbacks whose body came to its end in a place that was not killed
    """

    double_claims: list[str] = field(default_factory=list)
    double_runs: list[str] = field(default_factory=list)
    open_at_end: list[str] = field(default_factory=list)
    stuck_callbacks: list[str] = field(default_factory=list)
    slots_leaked: list[str] = field(default_factory=list)
    open_tasks: list[str] = field(default_factory=list)
    false_successes: list[str] = field(default_factory=list)
    illegal_steps: list[str] = field(default_factory=list)
    false_failures: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return how many violations of each kind there are."""
        return {name: len(getattr(self, name)) for name in self.__slots__}

    def findings(self) -> Iterator[str]:
        """Yield every violation, named."""
        for name in self.__slots__:
            for finding in getattr(self, name):
                yield f"{name}: {finding}"


def judge(evidence: Evidence) -> Verdict:
    """Return every violation of an invariant."""
    return Verdict(
        double_claims=[*_claims_of_one_launch(evidence), *_claims_of_one_callback(evidence)],
        double_runs=list(_double_runs(evidence)),
        open_at_end=[
            f"{one.kind} launch {one.token} is {one.state}"
            for one in evidence.launches
            if LaunchState(one.state) in OPEN
        ],
        stuck_callbacks=[
            f"callback {one.id} is {one.state}"
            for one in evidence.callbacks
            if one.state not in CALLBACK_ENDED
        ],
        slots_leaked=list(_slots(evidence)),
        open_tasks=[
            f"{_named(one.subject)} is {one.state}" for one in evidence.tasks if one.state not in TASK_ENDED
        ],
        false_successes=list(_false_successes(evidence)),
        illegal_steps=list(_illegal_steps(evidence)),
        false_failures=list(_false_failures(evidence)),
    )


def _claims_of_one_launch(evidence: Evidence) -> Iterator[str]:
    claimants: dict[str, set[str]] = defaultdict(set)
    for step in evidence.steps:
        if step.claimant is not None:
            claimants[step.token].add(step.claimant)
    places: dict[str, list[str]] = defaultdict(list)
    for body in evidence.bodies:
        places[body.token].append(body.place)
    for token in sorted({*claimants, *places}):
        if len(claimants[token]) > 1:
            yield f"launch {token} was claimed by {sorted(claimants[token])}"
        elif len(places[token]) > 1:
            yield f"launch {token} was run in each of {places[token]}"


def _claims_of_one_callback(evidence: Evidence) -> Iterator[str]:
    subjects = {one.token: one.subject_id for one in evidence.launches if one.kind == "callback"}
    claimed: dict[str, set[str]] = defaultdict(set)
    for step in evidence.steps:
        if step.after == LaunchState.CLAIMED and step.token in subjects:
            claimed[subjects[step.token]].add(step.token)
    for subject, tokens in claimed.items():
        if len(tokens) > 1:
            yield f"callback {subject} was claimed under {sorted(tokens)}"


def _double_runs(evidence: Evidence) -> Iterator[str]:
    for subject, bodies in _bodies_by_subject(evidence).items():
        for earlier, later in pairwise(bodies):
            if not _died_in_it(earlier, evidence.killed, later.began):
                yield (
                    f"{subject} ran in {earlier.place} under {earlier.token}, "
                    f"and again in {later.place} under {later.token}"
                )


def _died_in_it(body: Body, killed: dict[str, float], until: float) -> bool:
    return body.ended is None and killed.get(body.place, until) < until


def _bodies_by_subject(evidence: Evidence) -> dict[Hashable, list[Body]]:
    callbacks = {one.token: one.subject_id for one in evidence.launches if one.kind == "callback"}
    found: dict[Hashable, list[Body]] = defaultdict(list)
    for body in sorted(evidence.bodies, key=lambda one: one.began):
        if body.kind == "task":
            found[_named(body.subject)].append(body)
        else:
            found[f"callback {callbacks.get(body.token, body.token)}"].append(body)
    return found


def _false_successes(evidence: Evidence) -> Iterator[str]:
    ended = {
        subject
        for subject, bodies in _bodies_by_subject(evidence).items()
        if any(body.ended is not None for body in bodies)
    }
    for task in evidence.tasks:
        if task.state == "success" and _named(task.subject) not in ended:
            yield f"{_named(task.subject)} is success, and its body did not come to its end"
    for callback in evidence.callbacks:
        if callback.state == "success" and f"callback {callback.id}" not in ended:
            yield f"callback {callback.id} is success, and its body did not come to its end"


def _false_failures(evidence: Evidence) -> Iterator[str]:
    bodies = _bodies_by_subject(evidence)
    for callback in evidence.callbacks:
        ran = bodies.get(f"callback {callback.id}", [])
        well = [body for body in ran if body.ended is not None and body.place not in evidence.killed]
        if callback.state == "failed" and well:
            where = well[0].place
            yield f"callback {callback.id} is failed, and its body ended in {where}: {callback.output}"


def _illegal_steps(evidence: Evidence) -> Iterator[str]:
    allowed = {(before, after) for sources, after in TRANSITIONS.values() for before in sources}
    for step in evidence.steps:
        if step.before is None or step.before == step.after:
            continue
        if (LaunchState(step.before), LaunchState(step.after)) not in allowed:
            yield f"launch {step.token} went from {step.before} to {step.after}"


def _slots(evidence: Evidence) -> Iterator[str]:
    for scheduler, slots in evidence.slots.items():
        if slots is None:
            yield f"{scheduler} did not say what it holds"
        else:
            yield from (f"{scheduler} holds a slot for nothing" for _ in range(slots))


def _named(subject: tuple[str | int, ...]) -> str:
    dag_id, run_id, task_id, map_index, try_number = subject
    return f"{dag_id} {run_id} {task_id}[{map_index}] try {try_number}"
