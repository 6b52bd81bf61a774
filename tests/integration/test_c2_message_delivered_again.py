# SPDX-License-Identifier: Apache-2.0
"""C2: a message is delivered again after success, after a deferral, or while its first delivery runs.

Right: it is acknowledged as a duplicate; the stored result and the task stay as they are. Stock Airflow
stores FAILURE for the id (known faults 14 and 16). Real workers on Redis, results in the metadata database as
by default, and a real API server with the fence.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from uuid import UUID

import pytest
import redis
from airflow.configuration import conf

from dispatcher.backends.base import Artefact, Sent
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.domain.workload import WorkloadKind
from tests.support import deferring_dag, guarded_dag, services
from tests.support.backend_harness import eventually, make_submission
from tests.support.celery_backend import make_backend, make_conf, messages, take_message
from tests.support.celery_worker import PLAIN, CeleryWorker
from tests.support.fence_calls import launch_row, queued_launch, requeue, task_instance
from tests.support.tokens import sign_token
from tests.support.workloads import make_task_workload

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(300)]

SECONDS = 120
QUEUE = "default"
PARKED = "parked"
"""A queue that no worker consumes."""


@pytest.fixture(scope="module")
def dag_files(airflow_home):
    for module in (guarded_dag, deferring_dag):
        shutil.copy(module.__file__, airflow_home / "dags" / Path(module.__file__).name)


@pytest.fixture(scope="module")
def broker():
    with services.claimed_redis_database() as url:
        yield url


@pytest.fixture(scope="module")
def results():
    return "db+" + os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]


@pytest.fixture(scope="module")
def worker_of_module(api_server, dag_files, broker, results, tmp_path_factory):
    url = api_server(with_plugin=True).url + "/execution/"
    env = {"AIRFLOW__CELERY__RESULT_BACKEND": results, "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2"}
    folder = tmp_path_factory.mktemp("worker")
    with CeleryWorker([*PLAIN, "--skip-serve-logs"], broker, url, folder, env) as worker:
        yield worker


@pytest.fixture
def worker(worker_of_module):
    worker_of_module.take_marks()
    return worker_of_module


@pytest.fixture
def backend(broker, results):
    backend = make_backend(make_conf(broker, results))
    backend.start("1")
    yield backend
    backend.stop()


class Message:
    """The message of a launch, kept back, to be delivered as often as the test likes."""

    def __init__(self, backend, broker, launch, task_id, dag=("guarded", "guarded_dag.py")) -> None:
        workload = make_task_workload(task_id, launch.token)
        workload.ti.id = UUID(launch.subject_id)
        workload.ti.dag_id, workload.dag_rel_path = dag
        self.log = Path(conf.get("logging", "base_log_folder"), workload.log_path)
        workload.token = sign_token(launch.subject_id, launch_token=launch.token)
        submission = make_submission(
            token=launch.token, queue=PARKED, payload=workload.model_dump_json(), workload=workload
        )
        assert backend.submit([submission]) == {launch.token: Sent(launch.token)}
        (self._message,) = messages(broker, PARKED)
        take_message(broker, launch.token, PARKED)
        self._broker = broker

    def deliver(self) -> None:
        """Put it into the queue of the worker."""
        with redis.Redis.from_url(self._broker) as client:
            client.lpush(QUEUE, json.dumps(self._message))

    def deliver_again(self) -> None:
        """Put it into the queue as kombu restores a message that was not acknowledged in time."""
        self._message["headers"]["redelivered"] = True
        self._message["properties"]["delivery_info"]["redelivered"] = True
        self.deliver()


def told(backend, token):
    """Wait until the ending of a token is told, and return it."""

    def found():
        return [one for one in backend.observe() if one.token == token]

    (observation,) = eventually(found, "the ending is told", SECONDS)
    return observation


def picture(session, launch):
    """Return what must not change: the task instance and its launch."""
    instance = task_instance(session, launch.subject_id)
    columns = {column.name: getattr(instance, column.key) for column in instance.__mapper__.columns}
    columns.pop("updated_at")
    return columns, launch_row(session, launch.token)


def refusals(worker, token, reason):
    line = f"Launch {token} of task"
    return [
        one for one in worker.log().splitlines() if line in one and f"refused at the claim ({reason})" in one
    ]


def refuse(worker, message, token, reason, times=1):
    """Deliver a message once more and wait until it was refused and acknowledged."""
    message.deliver_again()
    worker.wait_for(lambda: len(refusals(worker, token, reason)) == times)


def test_fault_16_after_success(db_session, backend, broker, worker):
    launch = queued_launch(db_session, dag_id="guarded", task_id="succeed")
    message = Message(backend, broker, launch, "succeed")
    message.deliver()
    first = told(backend, launch.token)
    before = picture(db_session, launch)
    assert before[0]["state"] == "success"
    assert (first.ok, first.claimant) == (True, before[1].claimant)

    for times in (1, 2):
        refuse(worker, message, launch.token, "launch_consumed", times)
    worker.wait_idle()

    assert told(backend, launch.token) == first
    assert picture(db_session, launch) == before
    assert worker.take_marks() == ["succeed"]


def test_after_a_deferral(db_session, backend, broker, worker):
    launch = queued_launch(db_session, dag_id="deferring", task_id="defer")
    message = Message(backend, broker, launch, "defer", ("deferring", "deferring_dag.py"))
    message.deliver()
    first = told(backend, launch.token)
    before = picture(db_session, launch)
    assert before[0]["state"] == "deferred"
    assert before[0]["trigger_id"] is not None
    assert (first.ok, first.claimant) == (True, before[1].claimant)

    refuse(worker, message, launch.token, "launch_consumed")
    worker.wait_idle()

    assert told(backend, launch.token) == first
    assert picture(db_session, launch) == before
    assert worker.take_marks() == ["deferred"]


def test_after_a_deferral_and_the_next_launch(db_session, backend, broker, worker):
    dag = ("deferring", "deferring_dag.py")
    launch = queued_launch(db_session, dag_id="deferring", task_id="defer")
    message = Message(backend, broker, launch, "defer", dag)
    message.deliver()
    first = told(backend, launch.token)
    resumed = requeue(db_session, launch.subject_id)
    before = picture(db_session, launch)

    refuse(worker, message, launch.token, "launch_superseded")
    worker.wait_idle()

    assert picture(db_session, launch) == before
    assert before[0]["state"] == "queued"
    Message(backend, broker, resumed, "defer", dag).deliver()
    second = told(backend, resumed.token)
    assert (second.ok, second.claimant) == (True, launch_row(db_session, resumed.token).claimant)
    assert told(backend, launch.token) == first
    assert task_instance(db_session, launch.subject_id).state == "success"
    assert worker.take_marks() == ["deferred", "resumed"]


def test_fault_14_fault_16_while_it_runs(db_session, backend, broker, worker):
    launch = queued_launch(db_session, dag_id="guarded", task_id="sleep")
    message = Message(backend, broker, launch, "sleep")
    message.deliver()
    worker.wait_for(lambda: task_instance(db_session, launch.subject_id).state == "running")
    written = eventually(
        lambda: message.log.exists() and message.log.read_text(), "its log is written", SECONDS
    )

    refuse(worker, message, launch.token, "launch_consumed")

    now = message.log.read_text()
    assert now.startswith(written), "known fault 16: the log of the first delivery is not replaced"
    assert "refused" not in now
    assert "launch_consumed" not in now
    assert backend.observe() == []
    instance, row = picture(db_session, launch)
    assert (instance["state"], row.state) == ("running", LaunchState.CLAIMED)
    requeue(db_session, launch.subject_id)
    stopped = told(backend, launch.token)
    assert (stopped.ok, stopped.claimant) == (True, row.claimant)
    backend.remove([Artefact(launch.token, WorkloadKind.TASK)])
    worker.wait_idle()
    assert backend.observe() == []
    assert "slept" not in worker.take_marks()
