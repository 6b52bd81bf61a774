# SPDX-License-Identifier: Apache-2.0
"""What is sent to Celery: the messages themselves, and what becomes of a batch."""

from __future__ import annotations

import json

import pytest
import redis
from airflow.providers.celery.executors.celery_executor_utils import create_celery_app

from dispatcher.backends.base import Postponed, Rejected, Sent
from dispatcher.backends.celery import publisher
from dispatcher.domain.workload import WorkloadKind
from tests.support.backend_harness import make_submission
from tests.support.celery_backend import body_of, make_backend, make_conf, messages
from tests.support.celery_worker import embedded_broker
from tests.support.workloads import make_task_workload

RESULTS = "cache+memory://"
OTHER_EACH_TIME = {"delivery_tag", "reply_to"}
"""Properties that name the delivery and the sending thread."""


@pytest.fixture(scope="module")
def broker_of_module():
    with embedded_broker() as url:
        yield url


@pytest.fixture
def broker(broker_of_module):
    with redis.Redis.from_url(broker_of_module) as client:
        client.flushall()
    return broker_of_module


@pytest.fixture
def open_backend(broker):
    opened = []

    def open_one(**settings):
        backend = make_backend(make_conf(broker, RESULTS, **settings))
        backend.start("1")
        opened.append(backend)
        return backend

    yield open_one
    for backend in opened:
        backend.stop()


@pytest.fixture
def backend(open_backend):
    return open_backend()


def send_as_stock(broker, workload, token, queue):
    """Do what the stock executor does with one workload."""
    app = create_celery_app(make_conf(broker, RESULTS))
    task = app.tasks["execute_workload"]
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        task.apply_async(args=(workload.model_dump_json(),), queue=queue, task_id=token, producer=producer)


@pytest.mark.parametrize("queue", ["default", "other"])
def test_a_message_equals_that_of_the_stock_executor(broker, backend, queue):
    submission = make_submission(queue=queue)
    workload = make_task_workload("succeed", submission.token)
    submission = make_submission(token=submission.token, queue=queue, payload=workload.model_dump_json())
    backend.submit([submission])
    send_as_stock(broker, workload, submission.token, queue)

    ours, stock = messages(broker, queue)

    assert body_of(ours) == body_of(stock)
    assert body_of(ours)[0] == [workload.model_dump_json()]
    # All that differs is what monitors are shown; Celery puts an option of its own into both places.
    assert ours["properties"].pop("argsrepr") == ours["headers"].pop("argsrepr")
    assert "argsrepr" not in stock["properties"]
    stock["headers"].pop("argsrepr")
    assert ours["headers"] == stock["headers"]
    for message in (ours, stock):
        for name in OTHER_EACH_TIME:
            assert message["properties"].pop(name)
    assert ours == stock
    assert ours["headers"]["id"] == submission.token
    assert ours["headers"]["task"] == "execute_workload"


def test_fault_53_what_monitors_see_of_a_message_tells_no_secret(broker, backend):
    """Known fault 53: the workload's JWT in logs and events."""
    submission = make_submission(payload=json.dumps({"token": "marked-secret"}))
    backend.submit([submission])

    (message,) = messages(broker)

    assert "marked-secret" not in json.dumps(message["headers"])
    assert message["headers"]["argsrepr"] == f"('<workload of {submission.token}>',)"


@pytest.mark.parametrize("kind", list(WorkloadKind))
def test_each_kind_goes_to_its_queue_under_its_token(broker, backend, kind):
    submission = make_submission(kind, queue=f"queue-of-{kind}")

    assert backend.submit([submission]) == {submission.token: Sent(submission.token)}

    assert [one["headers"]["id"] for one in messages(broker, submission.queue)] == [submission.token]


def test_the_most_important_is_sent_first(broker, backend):
    """Known fault 32: the lowest priority went first."""
    submissions = {weight: make_submission(priority=weight) for weight in (1, 10, 5)}
    backend.submit(list(submissions.values()))

    sent = [message["headers"]["id"] for message in messages(broker)]

    assert sent == [submissions[weight].token for weight in (10, 5, 1)]


def number_of_connections(client: redis.Redis) -> int:
    # Read raw: some versions of the client cannot parse what the embedded broker lists.
    connection = client.connection_pool.get_connection()
    connection.send_command("CLIENT", "LIST")
    listed = connection.read_response()
    client.connection_pool.release(connection)
    return len(listed.splitlines())


def test_fault_33_a_batch_takes_one_connection_and_leaves_no_subscription(broker, backend):
    """Known fault 33: sockets and memory grow with every send."""
    backend.submit([make_submission()])
    with redis.Redis.from_url(broker) as client:
        before = number_of_connections(client)
        backend.submit([make_submission() for _ in range(50)])
        assert number_of_connections(client) == before
        assert client.pubsub_channels() == []


def test_a_queue_that_the_broker_refuses_holds_up_no_other(broker, backend, monkeypatch):
    with redis.Redis.from_url(broker) as client:
        client.set("broken", "not a list")
    broken = [make_submission(queue="broken", priority=10) for _ in range(3)]
    good = [make_submission(priority=1) for _ in range(3)]

    connections = []
    connect = publisher.connect
    monkeypatch.setattr(publisher, "connect", lambda app: connections.append(app) or connect(app))
    results = backend.submit([*broken, *good])

    for submission in broken:
        result = results[submission.token]
        assert isinstance(result, Postponed)
        assert not result.ambiguous
        assert "refused" in result.reason
    assert all(isinstance(results[one.token], Sent) for one in good)
    assert len(connections) == 2


def test_a_queue_that_celery_does_not_know_is_the_workloads_fault(broker, open_backend, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CELERY__EXTRA_CELERY_CONFIG", '{"task_create_missing_queues": false}')
    backend = open_backend()
    known, unknown = make_submission(), make_submission(queue="nobody-knows")

    results = backend.submit([unknown, known])

    assert isinstance(results[known.token], Sent)
    assert isinstance(results[unknown.token], Rejected)
    assert "nobody-knows" in results[unknown.token].reason


def test_a_batch_that_is_too_large_goes_on_in_the_next_heartbeat(broker, open_backend, monkeypatch):
    monkeypatch.setattr(publisher, "CHUNK", 20)
    backend = open_backend(operation_timeout="0.01")
    waiting = {one.token: one for one in (make_submission() for _ in range(800))}
    total = set(waiting)
    heartbeats = repeated = 0
    while waiting:
        heartbeats += 1
        for token, result in backend.submit(list(waiting.values())).items():
            if isinstance(result, Sent):
                del waiting[token]
            elif result.ambiguous:
                repeated += 1
            else:
                # Without a delay, unless a busy machine made the broker look as if it hung.
                assert result.retry_after == 0.0 or " answer" in result.reason

    sent = [message["headers"]["id"] for message in messages(broker)]
    assert heartbeats > 1
    assert set(sent) == total
    assert len(sent) <= len(total) + repeated


def test_a_stopped_backend_can_be_used_again(broker, backend):
    backend.submit([make_submission()])
    backend.stop()
    submission = make_submission()

    assert backend.submit([submission]) == {submission.token: Sent(submission.token)}
