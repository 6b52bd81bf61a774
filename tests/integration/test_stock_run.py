# SPDX-License-Identifier: Apache-2.0
"""Airflow's own ``/run`` turns a QUEUED task instance RUNNING, by each way in which tests reach it."""

from __future__ import annotations

import pytest

from tests.support.rows import make_task_instance, utcnow
from tests.support.tokens import bearer, sign_token

PAYLOAD = {"state": "running", "hostname": "worker", "unixname": "airflow", "pid": 7}


def run_payload():
    return {**PAYLOAD, "start_date": utcnow().isoformat()}


def test_run_in_process(db_session, execution_client):
    instance = make_task_instance(db_session)
    db_session.commit()

    answer = execution_client.patch(
        f"/execution/task-instances/{instance.id}/run",
        json=run_payload(),
        headers=bearer(sign_token(instance.id)),
    )

    assert answer.status_code == 200, answer.text
    db_session.refresh(instance)
    assert (instance.state, instance.hostname) == ("running", "worker")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("with_plugin", [True, False])
def test_run_on_a_real_server(db_session, api_server, with_plugin):
    instance = make_task_instance(db_session)
    db_session.commit()

    with api_server(with_plugin=with_plugin).client(sign_token(instance.id)) as client:
        answer = client.patch(f"/task-instances/{instance.id}/run", json=run_payload())

    assert answer.status_code == 200, answer.text
    db_session.refresh(instance)
    assert (instance.state, instance.hostname) == ("running", "worker")


def test_an_expired_token_is_refused(db_session, execution_client):
    instance = make_task_instance(db_session)
    db_session.commit()

    answer = execution_client.patch(
        f"/execution/task-instances/{instance.id}/run",
        json=run_payload(),
        headers=bearer(sign_token(instance.id, valid_for=-60)),
    )

    assert answer.status_code in {401, 403}
    db_session.refresh(instance)
    assert instance.state == "queued"


def test_the_stock_environment_does_not_know_us(api_server):
    import subprocess

    for module in ("dispatcher", "workers"):
        command = [str(api_server.stock_python()), "-I", "-c", f"import {module}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in result.stderr
