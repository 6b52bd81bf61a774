# SPDX-License-Identifier: Apache-2.0
"""A11: a pod ends Succeeded without a claim, on a real cluster. FAILED, not SUCCESS."""

from __future__ import annotations

import pytest

from tests.support import callback_dispatching as on
from tests.support import dispatching as run
from tests.support import field_dispatching

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


@pytest.fixture(autouse=True)
def _in_pods(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")


def test_it_is_a_failure(field):
    executor = field_dispatching.started_executor(field)
    callback_id = on.new_callback()
    run.queue_callback(executor, callback_id)
    token = on.token_of(callback_id)
    field.kubelet.end(executor.pod_of(token), 0)

    executor.drive(lambda: executor.told, "Airflow is told")
    key, state, info = executor.told[0]
    assert (key.id, state, info) == (
        str(callback_id),
        "failed",
        "the callback's worker ended without having been claimed",
    )
    on.hear([(key, (state, info))])
    executor.drive(lambda: field.kubelet.pods() == [], "the pod is removed")
    assert executor.slots_occupied == 0
