# SPDX-License-Identifier: Apache-2.0
"""B4: an upgrade in progress: a stock worker, without this distribution, gets the messages that we send.

It runs them, and the fence refuses it a stale one on ``/run``, by the token in the JWT alone.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from dispatcher.domain.launch import PROCESS_PREFIX
from dispatcher.domain.lifecycle import LaunchState
from tests.support import guarded_dag
from tests.support import service_dispatching as run
from tests.support.celery_worker import CeleryWorker
from tests.support.dispatching import launch_of, loop, queue_task

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(400)]

QUEUE = "stock"
NOT_OURS = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
"""Keeps the checkout, which is the working directory, off the import path."""

TURNS = 5
"""Turns of the scheduler's loop after which what was observed has had every effect."""


@pytest.fixture(scope="module")
def stock_python(api_server):
    return str(api_server.stock_python())


@pytest.fixture(scope="module")
def worker_of_module(stock_python, broker, server, tmp_path_factory):
    command = [stock_python, "-m", "airflow", "celery", "worker", "-q", QUEUE, "--skip-serve-logs"]
    with CeleryWorker(command, broker, server, tmp_path_factory.mktemp("worker"), NOT_OURS) as worker:
        yield worker


@pytest.fixture
def stock_worker(worker_of_module):
    worker_of_module.take_marks()
    return worker_of_module


@pytest.fixture
def dag(airflow_db, airflow_home):
    run.place_dag(airflow_home, guarded_dag, "guarded", "succeed")


def columns_of(subject_id):
    instance = run.task_instance(subject_id)
    return {column.key: getattr(instance, column.key) for column in instance.__mapper__.column_attrs}


@pytest.mark.parametrize("module", ["dispatcher", "workers"])
def test_nothing_of_ours_is_installed_there(stock_python, module):
    finished = subprocess.run(
        [stock_python, "-c", f"import airflow.providers.celery, {module}"],
        env={**os.environ, **NOT_OURS},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 1
    assert f"No module named '{module}'" in finished.stderr


def test_it_runs_what_our_executor_sent(dag, executor, stock_worker):
    token = queue_task(executor, dag_id="guarded", task_id="succeed", queue=QUEUE)

    told = run.drive_to_the_end(executor, token)

    launch = launch_of(token)
    assert run.task_instance(launch.subject_id).state == "success"
    assert launch.state is LaunchState.SUCCEEDED
    assert launch.claimant.startswith(PROCESS_PREFIX), "it sent no headers: the claim was judged by its JWT"
    assert stock_worker.take_marks() == ["succeed"]
    assert executor.slots_occupied == 0
    assert told == [], "the task told its own state"


def test_a_stale_message_is_refused(dag, executor, broker, stock_worker):
    old = queue_task(executor, dag_id="guarded", task_id="succeed", queue=run.PARKED)
    told = list(loop(executor).items())
    stale = run.HeldMessage(broker, old)
    subject_id = launch_of(old).subject_id
    # As after stuck-in-queued handling. One turn sends the new launch; a later one would also tell the
    # workers to drop the old message, which a worker that is away or restarts never hears of.
    new = run.queue_again(executor, subject_id)
    told += loop(executor).items()
    current = run.HeldMessage(broker, new)
    before = columns_of(subject_id)

    stale.deliver(QUEUE)
    stock_worker.wait_for(lambda: stock_worker.state(old) == "FAILURE")
    assert "launch_superseded" in stock_worker.log()
    for _ in range(TURNS):
        told += loop(executor).items()

    assert columns_of(subject_id) == before
    assert (before["state"], before["external_executor_id"]) == ("queued", new)
    assert stock_worker.take_marks() == []
    assert launch_of(old).state is LaunchState.SUPERSEDED
    assert launch_of(new).state is LaunchState.SUBMITTED
    assert executor.slots_occupied == 1

    current.deliver(QUEUE)
    told += run.drive_to_the_end(executor, new)
    assert run.task_instance(subject_id).state == "success"
    assert stock_worker.take_marks() == ["succeed"]
    assert executor.slots_occupied == 0
    assert told == []
