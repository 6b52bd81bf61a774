# SPDX-License-Identifier: Apache-2.0
"""What the fence changes: the same calls to a real API server with the plugin, and to one without it.

Without it, C3 (an old message is delivered after the task was queued anew) and B3 (an old worker reports
while a newer launch runs) are accepted, and B2 (cleared while it runs) is answered as if there never was
such a task.
"""

from __future__ import annotations

import httpx
import pytest
from airflow.models.taskinstance import clear_task_instances

from dispatcher.compat import AIRFLOW_3_4_PLUS
from tests.support.fence_calls import guarded, queued_launch, reason, requeue, task_instance

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=[True, False], ids=["with the plugin", "without"])
def fenced(request):
    return request.param


@pytest.fixture
def client(api_server, fenced):
    server = api_server(workers=2) if fenced else api_server(with_plugin=False)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def answer_to(response):
    return response.status_code, reason(response) if response.is_error else None


def test_c3_an_old_message_is_delivered_first(db_session, client, fenced):
    first = queued_launch(db_session)
    second = requeue(db_session, first.subject_id)

    old, new = answer_to(guarded(client, first).run()), answer_to(guarded(client, second).but(pid=8).run())

    if fenced:
        assert (old, new) == ((409, "launch_superseded"), (200, None))
    else:
        assert (old, new) == ((200, None), (409, "invalid_state"))


def test_b3_an_old_worker_reports(db_session, client, fenced):
    """The old process has the host name and process id of the new one, as in containers."""
    first = queued_launch(db_session)
    old = guarded(client, first)
    assert old.run().status_code == 200
    deferral = {"state": "deferred", "classpath": "trigger", "next_method": "resume"}
    assert old.call("PATCH", "state", "execution", deferral).status_code == 204
    second = requeue(db_session, first.subject_id)
    assert guarded(client, second).run().status_code == 200

    answers = answer_to(old.heartbeat()), answer_to(old.report("failed"))

    state = task_instance(db_session, first.subject_id).state
    if fenced:
        assert (answers, state) == (((409, "launch_superseded"),) * 2, "running")
    else:
        assert (answers, state) == (((204, None),) * 2, "failed")


@pytest.mark.skipif(AIRFLOW_3_4_PLUS, reason="a running try keeps its UUID on Airflow 3.4")
def test_b2_cleared_while_it_runs(db_session, client, fenced):
    launch = queued_launch(db_session)
    worker = guarded(client, launch)
    assert worker.run().status_code == 200
    clear_task_instances([task_instance(db_session, launch.subject_id)], db_session)
    db_session.commit()

    answers = [answer_to(call()) for call in (worker.run, worker.report, worker.heartbeat)]

    if fenced:
        assert answers == [(409, "launch_superseded")] * 3
    else:
        assert answers == [(404, "not_found"), (404, "not_found"), (410, "not_found")]
