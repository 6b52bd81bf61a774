# SPDX-License-Identifier: Apache-2.0
"""B2: a task is cleared while it runs, and the old token is presented again. It is refused.

A real clear, by Airflow's own function: on 3.3 the task instance gets another UUID and keeps the token.
Airflow alone answers 404 or 410, which does not tell the worker that it was replaced. On 3.4 the try keeps
its UUID until its worker has ended; what becomes of its token then is in ``test_airflow_3_4.py``.
"""

from __future__ import annotations

import pytest
from airflow.models.taskinstance import clear_task_instances

from dispatcher.compat import AIRFLOW_3_4_PLUS
from dispatcher.domain.lifecycle import LaunchState
from tests.support.fence_calls import (
    assert_refused,
    guarded,
    launch_row,
    queued_launch,
    stock,
    task_instance,
)

pytestmark = pytest.mark.skipif(AIRFLOW_3_4_PLUS, reason="a running try keeps its UUID on Airflow 3.4")


def clear(session, instance_id):
    """Clear as the user interface does, and return the new UUID."""
    instance = task_instance(session, instance_id)
    clear_task_instances([instance], session)
    session.commit()
    assert str(instance.id) != str(instance_id)
    return instance.id


@pytest.fixture(params=[guarded, stock], ids=["guarded", "stock"])
def cleared(request, db_session, execution_client):
    """Return a worker whose task was cleared while it ran, and the UUID that the task has now."""
    launch = queued_launch(db_session)
    worker = request.param(execution_client, launch)
    assert worker.run().status_code == 200
    return worker, clear(db_session, launch.subject_id)


@pytest.mark.parametrize("call", ["run", "heartbeat", "report", "rendered_map_index"])
def test_the_old_worker_is_refused(db_session, cleared, call):
    worker, new_id = cleared

    assert_refused(getattr(worker, call)(), "launch_superseded")

    after = task_instance(db_session, new_id)
    assert (after.state, after.external_executor_id) == ("restarting", worker.claim)


def test_it_skips_no_siblings(db_session, cleared):
    worker, _ = cleared

    assert_refused(worker.skip_downstream("sibling"), "launch_superseded")


def test_rendered_fields_get_the_answer_that_the_supervisor_tolerates(cleared):
    """Airflow's supervisor takes a late report of rendered fields in its stride by a 410 alone."""
    worker, _ = cleared

    assert worker.rtif().status_code == 410


def test_a_task_cleared_in_the_queue_is_refused_too(db_session, execution_client):
    launch = queued_launch(db_session)
    clear(db_session, launch.subject_id)

    assert_refused(guarded(execution_client, launch).run(), "launch_superseded")
    assert launch_row(db_session, launch.token).state is LaunchState.SUBMITTED


def test_a_token_that_the_ledger_does_not_know_gets_airflows_own_answer(db_session, execution_client):
    launch = queued_launch(db_session)
    worker = guarded(execution_client, launch)
    unknown = "00000000-0000-4000-8000-000000000000"
    clear(db_session, launch.subject_id)

    answer = worker.but(header=unknown, claim=unknown).run()

    assert answer.status_code == 404
