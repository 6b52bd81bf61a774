# SPDX-License-Identifier: Apache-2.0
"""C3: a task defers and is queued again (token 2); the old message (token 1) is delivered first.

Right: token 1 is refused, token 2 runs, slots are right. Without the fence Airflow accepts token 1, and
launch 2 finds nothing to do: the last test shows it. The late success of the deferred launch, known fault
116, is in the variant that has not observed it yet.
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import deferring_dag
from tests.support import service_dispatching as run
from tests.support.celery_worker import PLAIN, CeleryWorker
from tests.support.dispatching import launch_of, loop, queue_task

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(400)]


@pytest.fixture
def dag(airflow_db, airflow_home):
    run.place_dag(airflow_home, deferring_dag, "deferring", "defer")


@pytest.fixture
def unfenced_worker(api_server, broker, tmp_path):
    """Yield a worker of our own app at an API server without the plugin; it consumes a queue of its own."""
    url = api_server(with_plugin=False).url + "/execution/"
    command = [*PLAIN[:-1], "unfenced", "--skip-serve-logs"]
    with CeleryWorker(command, broker, url, tmp_path) as worker:
        yield worker


def defer(executor, broker, queue):
    """Run a task until it deferred, and return its UUID, the token and the message of that launch."""
    token = queue_task(executor, dag_id="deferring", task_id="defer", queue=run.PARKED)
    loop(executor)
    message = run.HeldMessage(broker, token)
    message.deliver(queue)
    subject_id = launch_of(token).subject_id
    assert executor.slots_occupied == 1
    return subject_id, token, message


def deferred(subject_id):
    return run.task_instance(subject_id).state == "deferred"


def resume(executor, broker, subject_id):
    """Fire the trigger, queue the task again, and return token and message of the new launch."""
    run.fire_trigger(subject_id)
    token = run.queue_again(executor, subject_id)
    loop(executor)
    return token, run.HeldMessage(broker, token)


def lines(worker, token, text):
    return [line for line in worker.log().splitlines() if token in line and text in line]


@pytest.mark.parametrize("observed", [True, False], ids=["observed", "not yet observed"])
def test_fault_116_the_old_message_is_refused_and_the_new_one_runs(dag, executor, broker, worker, observed):
    """``observed``: whether the scheduler saw the deferral's end before it queued the task again."""
    subject_id, first, old = defer(executor, broker, "default")
    told = []
    if observed:
        told += run.drive_to_the_end(executor, first)
        assert executor.slots_occupied == 0
    worker.wait_for(lambda: deferred(subject_id))
    worker.wait_idle()

    second, new = resume(executor, broker, subject_id)
    assert executor.slots_occupied == 1
    old.deliver_again()
    worker.wait_for(lambda: lines(worker, first, "refused at the claim (launch_superseded)"))
    worker.wait_idle()
    told += loop(executor).items()

    between = run.task_instance(subject_id)
    assert (between.state, between.external_executor_id) == ("queued", second)
    assert worker.take_marks() == ["deferred"]
    assert executor.slots_occupied == 1

    new.deliver()
    told += run.drive_to_the_end(executor, second)

    assert run.task_instance(subject_id).state == "success"
    assert worker.take_marks() == ["resumed"]
    assert launch_of(first).state is (LaunchState.SUCCEEDED if observed else LaunchState.SUPERSEDED)
    assert launch_of(second).state is LaunchState.SUCCEEDED
    assert executor.slots_occupied == 0
    assert told == [], "the task told its own state each time"


def test_without_the_fence_the_old_message_is_accepted(dag, executor, broker, unfenced_worker):
    subject_id, first, old = defer(executor, broker, "unfenced")
    unfenced_worker.wait_for(lambda: deferred(subject_id))
    unfenced_worker.wait_idle()
    second, new = resume(executor, broker, subject_id)

    old.deliver_again("unfenced")
    unfenced_worker.wait_for(lambda: run.task_instance(subject_id).state == "success")

    assert unfenced_worker.take_marks() == ["deferred", "resumed"], "the old message ran the body"
    unfenced_worker.wait_for(lambda: unfenced_worker.state(first) == "SUCCESS")
    new.deliver("unfenced")
    unfenced_worker.wait_for(lambda: unfenced_worker.state(second) == "FAILURE")
    assert unfenced_worker.take_marks() == []
    assert launch_of(second).state is LaunchState.SUBMITTED, "nobody ever claimed it"
