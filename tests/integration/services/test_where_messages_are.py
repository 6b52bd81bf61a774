# SPDX-License-Identifier: Apache-2.0
"""Where messages are, read from a real Redis and asked of a real worker."""

from __future__ import annotations

import json
import uuid

import pytest
import redis

from dispatcher.backends.celery import evidence, lookout
from dispatcher.backends.celery.app import create_app
from dispatcher.dispatch import search
from dispatcher.domain.lifecycle import LaunchState
from tests.support import gated_dag, guarded_dag
from tests.support import service_dispatching as run
from tests.support.backend_harness import make_submission
from tests.support.celery_backend import make_backend, make_conf, take_message
from tests.support.dispatching import launch_of, loop, queue_task

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(300)]


@pytest.fixture
def app(broker):
    made, _ = create_app(make_conf(broker, broker), 5.0)
    yield made
    made.close()


@pytest.fixture
def client(broker):
    with redis.Redis.from_url(broker) as client:
        yield client


@pytest.fixture
def send(broker):
    backend = make_backend(make_conf(broker, broker))
    backend.start("1")

    def send_one(**changes):
        submission = make_submission(queue=run.PARKED, **changes)
        backend.submit([submission])
        return submission.token

    yield send_one
    backend.stop()
    with redis.Redis.from_url(broker) as client:
        client.delete(run.PARKED)


def test_a_message_in_its_queue_is_there_and_one_that_was_taken_out_is_gone(app, broker, send, worker):
    token, lost = send(), send()
    waiting = {token: run.PARKED, lost: run.PARKED}
    assert evidence.gather(app, waiting).absent == frozenset()
    take_message(broker, lost, run.PARKED)
    assert evidence.gather(app, waiting).absent == {lost}


def test_many_messages_are_read_in_pages(app, send, worker):
    tokens = [send() for _ in range(2 * evidence.PAGE + 1)]
    waiting = dict.fromkeys([*tokens, "gone"], run.PARKED)
    assert evidence.gather(app, waiting).absent == {"gone"}


def test_of_queues_that_are_too_long_nothing_is_concluded(app, send, worker, monkeypatch):
    send()
    monkeypatch.setattr(evidence, "MAX_BYTES", 100)
    found = evidence.gather(app, {"gone": run.PARKED})
    assert (found.absent, found.unserved) == (frozenset(), {run.PARKED})


def test_a_message_of_another_priority_is_found(app, client, send, worker):
    token = send()
    key = f"{run.PARKED}\x06\x169"
    client.rename(run.PARKED, key)
    try:
        assert evidence.gather(app, {token: run.PARKED}).absent == frozenset()
    finally:
        client.delete(key)


def test_a_message_in_a_prefixed_queue_is_found(broker, monkeypatch, worker):
    monkeypatch.setenv("AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__GLOBAL_KEYPREFIX", "mine:")
    backend = make_backend(make_conf(broker, broker))
    backend.start("1")
    submission = make_submission(queue=run.PARKED)
    backend.submit([submission])
    backend.stop()
    app, _ = create_app(make_conf(broker, broker), 5.0)
    found = evidence.gather(app, {submission.token: run.PARKED, "gone": run.PARKED})
    with redis.Redis.from_url(broker) as client:
        assert client.delete(f"mine:{run.PARKED}") == 1
    assert found.absent == {"gone"}


def test_fault_23_it_is_known_which_queues_are_consumed(app, worker):
    found = evidence.gather(app, {"one": "default", "two": "callbacks", "three": "idle"})
    assert (found.unserved, found.workers) == ({"idle"}, 1)


def test_what_a_worker_has_is_not_lost_even_if_the_broker_forgot_it(
    app, client, executor, airflow_home, airflow_db, worker
):
    """The broker was flushed while a task ran: its message is nowhere, and the worker knows it."""
    run.place_dag(airflow_home, gated_dag, "gated", "wait")
    token = queue_task(executor, dag_id="gated", task_id="wait")
    run.drive(executor, worker.take_marks, "the body began")
    client.delete("unacked", "unacked_index")
    try:
        assert evidence.gather(app, {token: "default"}).absent == frozenset()
    finally:
        worker.open_gate()
    run.drive_to_the_end(executor, token)
    worker.close_gate()
    assert launch_of(token).state is LaunchState.SUCCEEDED


def test_what_a_worker_runs_is_known_after_a_second_delivery_was_dropped(
    app, broker, executor, airflow_home, airflow_db, worker
):
    """Else a callback that runs would be given up after the broker was away for a moment."""
    run.place_dag(airflow_home, gated_dag, "gated", "wait")
    token = queue_task(executor, dag_id="gated", task_id="wait", queue=run.PARKED)
    loop(executor)
    message = run.HeldMessage(broker, token)
    message.deliver()
    run.drive(executor, worker.take_marks, "the body began")

    message.deliver_again()
    worker.wait_for(
        lambda: any(token in line and "launch_consumed" in line for line in worker.log().splitlines())
    )
    try:
        assert evidence.held_by_workers(app, [token, "gone"]) == {token}
    finally:
        worker.open_gate()
    run.drive_to_the_end(executor, token)
    worker.close_gate()
    assert evidence.held_by_workers(app, [token]) == frozenset()


def test_what_was_delivered_to_a_worker_that_is_gone_is_lost(app, client, send, worker):
    """It stays in kombu's hash until the visibility time-out, a day by default; nobody has it."""
    token = send()
    message = json.loads(client.rpop(run.PARKED))
    tag = str(uuid.uuid4())
    client.hset("unacked", tag, json.dumps([message, "", run.PARKED]))
    try:
        assert evidence.gather(app, {token: run.PARKED}).absent == {token}
    finally:
        client.hdel("unacked", tag)


def test_a_flushed_broker_is_noticed_and_the_task_runs_once(
    executor, broker, client, airflow_home, airflow_db, worker, monkeypatch
):
    """From the send to the end: the message vanishes, two looks agree, it is sent again under its token."""
    monkeypatch.setattr(search, "PATIENCE", 0 * search.PATIENCE)
    monkeypatch.setattr(lookout, "LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(lookout, "CONFIRM_INTERVAL", 0.0)
    run.place_dag(airflow_home, guarded_dag, "guarded", "succeed")
    token = queue_task(executor, dag_id="guarded", task_id="succeed", queue=run.PARKED)
    loop(executor)
    old = run.HeldMessage(broker, token)

    def sent_again():
        executor.dispatcher.sweep_soon()
        return client.llen(run.PARKED)

    run.drive(executor, sent_again, "it is sent again")
    run.HeldMessage(broker, token).deliver()
    run.drive_to_the_end(executor, token)
    old.deliver_again()
    worker.wait_for(lambda: f"Launch {token} of task" in worker.log())
    worker.wait_idle()

    assert worker.take_marks() == ["succeed"], "the old message turned up after all, and was refused"
    assert launch_of(token).state is LaunchState.SUCCEEDED
    assert executor.slots_occupied == 0
