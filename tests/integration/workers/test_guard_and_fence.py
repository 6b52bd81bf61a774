# SPDX-License-Identifier: Apache-2.0
"""The guard and the fence together: a worker process and a real API server with the plugin."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.celery_worker import wait_until
from tests.support.rows import make_task_instance
from tests.support.tokens import sign_token
from tests.support.workloads import make_task_workload

SECONDS = 60


@pytest.fixture
def server(api_server):
    return api_server(with_plugin=True).url + "/execution/"


def new_workload(instance, token, task_id="succeed"):
    workload = make_task_workload(task_id, token)
    workload.ti.id = instance.id
    workload.token = sign_token(instance.id, launch_token=token)
    return workload


def test_the_current_launch_runs(guard, server, db_session):
    token = str(uuid.uuid4())
    instance = make_task_instance(db_session, token=token)
    db_session.commit()

    assert guard.run(new_workload(instance, token), server) == {"type": "Completed", "exit_code": 0}

    db_session.refresh(instance)
    assert instance.state == "success"
    assert guard.take_marks() == ["succeed"]


def test_an_old_launch_is_refused_and_changes_nothing(guard, server, db_session):
    instance = make_task_instance(db_session, token=str(uuid.uuid4()))
    db_session.commit()

    outcome = guard.run(new_workload(instance, str(uuid.uuid4())), server)

    assert outcome == {"type": "Refused", "reason": "launch_superseded"}
    db_session.refresh(instance)
    assert instance.state == "queued"
    assert guard.take_marks() == []


def test_a_launch_that_gets_old_while_it_runs_is_stopped(guard, server, db_session):
    """B3: a newer launch of the same UUID is queued meanwhile."""
    token = str(uuid.uuid4())
    instance = make_task_instance(db_session, token=token)
    db_session.commit()

    def running():
        db_session.refresh(instance)
        db_session.rollback()
        return instance.state == "running"

    with ThreadPoolExecutor() as pool:
        run = pool.submit(guard.run, new_workload(instance, token, "sleep"), server)
        wait_until(running, SECONDS)
        instance.external_executor_id = str(uuid.uuid4())
        db_session.commit()

        assert run.result(SECONDS) == {"type": "Stopped", "reason": "launch_superseded"}

    db_session.refresh(instance)
    assert instance.state == "running"
    assert "slept" not in guard.take_marks()
