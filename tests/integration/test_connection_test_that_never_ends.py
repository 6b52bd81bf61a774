# SPDX-License-Identifier: Apache-2.0
"""A connection test whose worker died: Airflow gives it up, and nothing of it is kept."""

from __future__ import annotations

from uuid import uuid4

import pytest
from airflow.executors import workloads
from airflow.utils.session import create_session

from dispatcher.backends.base import Observation
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


def test_it_is_stopped_and_forgotten():
    executor = run.started_executor()
    test = workloads.TestConnection.make(connection_test_id=str(uuid4()), connection_id="c", timeout=5)
    with create_session(scoped=False) as session:
        executor.queue_workload(test, session)
    run.loop(executor)
    assert executor.slots_occupied == 1

    executor.fail_connection_test(test.key)
    assert executor.slots_occupied == 0
    run.loop(executor)

    token = str(test.connection_test_id)
    assert executor.celery.revoked == {token}
    assert executor.celery.artefacts == {}
    # Its late end frees no slot a second time.
    executor.celery.end(Observation(token, ok=True))
    assert run.loop(executor) == {}
