# SPDX-License-Identifier: Apache-2.0
"""B4: our worker with a real API server that runs without the plugin."""

from __future__ import annotations

import uuid

import pytest

from dispatcher.compat import token_scope
from tests.support import guarded_callbacks
from tests.support.rows import make_callback, make_task_instance
from tests.support.tokens import sign_token
from tests.support.workloads import make_callback_workload, make_task_workload


@pytest.fixture
def bare_server(api_server):
    return api_server(with_plugin=False).url + "/execution/"


def test_a_callback_is_run_as_stock(guard, bare_server, db_session):
    path, token = f"{guarded_callbacks.__name__}.succeed", str(uuid.uuid4())
    callback = make_callback(db_session, path=path, state="queued")
    db_session.commit()
    workload = make_callback_workload(path, token)
    # Airflow 3.4's supervisor asks Airflow's own endpoint whether it may start.
    workload.callback.id = str(callback.id)
    workload.token = sign_token(callback.id, token_scope(workload), launch_token=token)

    assert guard.run(workload, bare_server) == {"type": "Completed", "exit_code": 0}

    assert guard.take_marks() == ["callback"]
    assert "no dispatcher plugin" in guard.take_log()


def test_a_task_is_run(guard, bare_server, db_session):
    token = str(uuid.uuid4())
    instance = make_task_instance(db_session, token=token)
    db_session.commit()
    workload = make_task_workload("succeed", token)
    workload.ti.id = instance.id
    workload.token = sign_token(instance.id, launch_token=token)

    assert guard.run(workload, bare_server) == {"type": "Completed", "exit_code": 0}

    db_session.refresh(instance)
    assert instance.state == "success"
    assert guard.take_marks() == ["succeed"]
