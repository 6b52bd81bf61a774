# SPDX-License-Identifier: Apache-2.0
"""C6: a message is revoked, and the worker that had it forgets so by restarting.

Right: refused at ``/run`` with ``launch_revoked``: the revocation is in the ledger. The executor of this test
speaks into a control exchange that no worker listens to, so the worker is as one that has forgotten.
"""

from __future__ import annotations

import json

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session

from dispatcher.domain.lifecycle import LaunchState
from tests.support import guarded_dag
from tests.support import service_dispatching as run
from tests.support.dispatching import launch_of, loop, queue_task

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(300)]


@pytest.fixture
def executor(configured, airflow_db, airflow_home):
    unheard = json.dumps({"control_exchange": "unheard"})
    configured.setenv("AIRFLOW__CELERY__EXTRA_CELERY_CONFIG", unheard)
    run.place_dag(airflow_home, guarded_dag, "guarded", "succeed")
    with run.started_executor() as executor:
        yield executor


def give_up(executor, token, *, again):
    """Let the scheduler give up a task that is stuck in queued, and queue it again or fail it."""
    subject_id = launch_of(token).subject_id
    with create_session(scoped=False) as session:
        instance = session.get(TaskInstance, run.task_instance(subject_id).id)
        executor.revoke_task(ti=instance)
        instance.state = "scheduled" if again else "failed"
    loop(executor)
    return run.queue_again(executor, subject_id, queue=run.PARKED) if again else None


@pytest.mark.parametrize("again", [True, False], ids=["queued again", "failed"])
def test_fault_26_a_late_message_is_refused(executor, broker, worker, again):
    token = queue_task(executor, dag_id="guarded", task_id="succeed", queue=run.PARKED)
    loop(executor)
    late = run.HeldMessage(broker, token)
    newer = give_up(executor, token, again=again)
    assert launch_of(token).state is LaunchState.REVOKED
    loop(executor)

    late.deliver()
    refused = (
        f"Launch {token} of task {launch_of(token).subject_id} was refused at the claim (launch_revoked)"
    )
    worker.wait_for(lambda: refused in worker.log())
    worker.wait_idle()

    assert worker.take_marks() == []
    assert launch_of(token).state is LaunchState.REVOKED
    assert loop(executor) == {}
    if again:
        run.HeldMessage(broker, newer).deliver()
        run.drive_to_the_end(executor, newer)
        assert worker.take_marks() == ["succeed"]
    assert executor.slots_occupied == 0
