# SPDX-License-Identifier: Apache-2.0
"""The tour's judgement: a good run has no fault, and each thing that can be wrong is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.example_dags.journal import Entry
from dispatcher.local.tour.expectations import CALLBACKS, PARTS, Outcome, expected_entries, faults

SETTLED = object()


def launch(number, **values):
    return Launch(
        sequence=number,
        token=f"token-{number}",
        state=LaunchState.SUCCEEDED,
        claimant="nonce:x",
        settled_at=SETTLED,
        **values,
    )


def good():
    launches = []
    for part in PARTS:
        for _ in range(part.launches):
            launches.append(
                launch(
                    len(launches),
                    kind=LaunchKind.TASK,
                    subject_id=str(part),
                    backend=part.backend,
                    queue=part.queue,
                    task_id=part.task_id,
                    map_index=part.map_index,
                )
            )
    for name, backend in CALLBACKS.items():
        launches.append(
            launch(
                len(launches),
                kind=LaunchKind.CALLBACK,
                subject_id=f"id of {name}",
                backend=backend,
                queue="callbacks",
            )
        )
    return Outcome(
        run_state="success",
        tasks=[(part.task_id, part.map_index, "success") for part in PARTS],
        callbacks=[(f"id of {name}", name, "success") for name in CALLBACKS],
        launches=launches,
        entries=expected_entries(),
    )


def with_launch(outcome, index, **values):
    launches = list(outcome.launches)
    launches[index] = launches[index]._replace(**values)
    return replace(outcome, launches=launches)


def test_a_good_run_has_no_fault():
    assert faults(good()) == []


STANDBY = [index for index, one in enumerate(good().launches) if one.task_id == "standby"]


def test_the_first_launch_of_two_may_have_given_way_to_the_second():
    assert len(STANDBY) == 2
    assert faults(with_launch(good(), STANDBY[0], state=LaunchState.SUPERSEDED)) == []


def test_the_run_is_at_least_what_the_tour_promises():
    tasks = [part.backend for part in PARTS]
    assert tasks.count(BackendName.CELERY) >= 3
    assert tasks.count(BackendName.KUBERNETES) >= 3
    assert set(CALLBACKS.values()) == set(BackendName)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda one: replace(one, run_state="failed"), "the run ended as failed"),
        (lambda one: replace(one, tasks=one.tasks[1:]), "task list_parts is missing"),
        (lambda one: replace(one, tasks=[*one.tasks, ("x", -1, "success")]), "nobody expected task x"),
        (
            lambda one: replace(one, callbacks=one.callbacks[1:]),
            "there are 0 callbacks report_late_on_celery",
        ),
        (
            lambda one: replace(one, callbacks=[(*one.callbacks[0][:2], "failed"), one.callbacks[1]]),
            "callback report_late_on_celery is failed",
        ),
        (lambda one: replace(one, launches=one.launches[1:]), "task list_parts took 0 launches, not 1"),
        (lambda one: replace(one, launches=one.launches[:-1]), "took no launch"),
        (lambda one: replace(one, launches=[*one.launches, one.launches[-1]]), "took 2 launches, not 1"),
        (lambda one: replace(one, launches=[*one.launches, one.launches[0]]), "took 2 launches, not 1"),
        (lambda one: with_launch(one, 0, task_id="x"), "nobody expected launch token-0 of x"),
        (lambda one: with_launch(one, 0, backend=BackendName.KUBERNETES), "list_parts went to kubernetes"),
        (lambda one: with_launch(one, 0, queue="x"), "list_parts went to queue x"),
        (lambda one: with_launch(one, -1, backend=BackendName.CELERY), "callback went to celery"),
        (
            lambda one: with_launch(one, 0, state=LaunchState.LOST, end_reason="why"),
            "list_parts is lost: why",
        ),
        (lambda one: with_launch(one, STANDBY[0], state=LaunchState.FAILED), "launch of standby is failed"),
        (lambda one: with_launch(one, STANDBY[1], state=LaunchState.SUPERSEDED), "standby is superseded"),
        (lambda one: with_launch(one, 0, claimant=None), "list_parts was never claimed"),
        (lambda one: with_launch(one, 0, settled_at=None), "list_parts is not settled"),
        (lambda one: replace(one, entries=one.entries[1:]), "was not noted"),
        (lambda one: replace(one, entries=[*one.entries, one.entries[0]]), "1 times too often"),
        (lambda one: replace(one, entries=[*one.entries, Entry("x", -1, 1, "celery")]), "1 times too often"),
    ],
)
def test_each_fault_is_named(spoil, fault):
    assert any(fault in one for one in faults(spoil(good())))
