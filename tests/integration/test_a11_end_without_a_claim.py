# SPDX-License-Identifier: Apache-2.0
"""A11: the artefact of a callback ends well without a claim. Upstream takes a Succeeded pod for a success.

Right: FAILED. On Celery too under ``fence=required``; under ``presented`` a worker without the guard, which
claims nothing, may have run it.
"""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchState
from tests.support import callback_dispatching as on
from tests.support import dispatching as run
from tests.support.service_dispatching import launches_of

pytestmark = pytest.mark.usefixtures("airflow_db")

WITHOUT_CLAIM = "the callback's worker ended without having been claimed"


@pytest.fixture
def in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


@pytest.fixture(params=["presented", "required"])
def fence(request, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__FENCE", request.param)
    return request.param


def ended_well(executor, backend):
    """Let the artefact of a callback end well; return the callback, and what Airflow is told of it."""
    callback_id, token = on.sent_callback(executor)
    backend.end(Observation(token, ok=True))
    ((_, event),) = on.turn(executor)
    (launch,) = launches_of(callback_id)
    return launch, event


def test_a_pod(in_pods, fence):
    executor = run.started_executor()
    launch, event = ended_well(executor, executor.kubernetes)
    assert event == ("failed", WITHOUT_CLAIM)
    assert (launch.state, launch.claimant) == (LaunchState.FAILED, None)


def test_a_message(fence):
    executor = run.started_executor()
    launch, event = ended_well(executor, executor.celery)
    if fence == "required":
        assert event == ("failed", WITHOUT_CLAIM)
        assert launch.state is LaunchState.FAILED
    else:
        assert event == ("success", None)
        assert (launch.state, launch.claimant) == (LaunchState.SUCCEEDED, "process:unfenced")
