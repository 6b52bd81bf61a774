# SPDX-License-Identifier: Apache-2.0
"""Which launches Airflow's stock executors can take over as they are."""

from __future__ import annotations

import pytest

from dispatcher.domain.handover import HandoverVerdict, executor_names, judge_handover
from dispatcher.domain.launch import Subject
from dispatcher.domain.lifecycle import BackendName, LaunchState
from tests.support.launches import build_launch

ADOPT, GIVE_BACK, LEAVE = HandoverVerdict.ADOPT, HandoverVerdict.GIVE_BACK, HandoverVerdict.LEAVE


@pytest.mark.parametrize(
    ("backend", "launch_state", "task_state", "has_pod", "verdict"),
    [
        ("celery", "issued", "queued", False, GIVE_BACK),
        ("celery", "submitted", "queued", False, ADOPT),
        ("celery", "claimed", "running", False, ADOPT),
        ("celery", "claimed", "restarting", False, ADOPT),
        ("celery", "failed", "queued", False, GIVE_BACK),
        ("kubernetes", "issued", "queued", False, GIVE_BACK),
        ("kubernetes", "submitted", "queued", False, GIVE_BACK),
        ("kubernetes", "submitted", "queued", True, ADOPT),
        ("kubernetes", "lost", "queued", True, GIVE_BACK),
        ("kubernetes", "claimed", "running", True, ADOPT),
        ("kubernetes", "claimed", "running", False, LEAVE),
    ],
)
def test_what_becomes_of_a_launch(backend, launch_state, task_state, has_pod, verdict):
    launch = build_launch(backend=BackendName(backend), state=LaunchState(launch_state))
    subject = Subject(id=launch.subject_id, state=task_state, token=launch.token)
    assert judge_handover(launch, subject, has_pod=has_pod) is verdict


@pytest.mark.parametrize("token", ["another", None])
def test_a_launch_that_is_not_current_is_left(token):
    launch = build_launch(state=LaunchState.SUBMITTED)
    subject = Subject(id=launch.subject_id, state="queued", token=token)
    assert judge_handover(launch, subject, has_pod=True) is LEAVE
    assert judge_handover(launch, None, has_pod=True) is LEAVE


def test_the_default_executor_needs_no_name():
    celery, kubernetes = BackendName.CELERY, BackendName.KUBERNETES
    assert executor_names(celery) == {celery: None, kubernetes: "KubernetesExecutor"}
    assert executor_names(kubernetes) == {celery: "CeleryExecutor", kubernetes: None}
