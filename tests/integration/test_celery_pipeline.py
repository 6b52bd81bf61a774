# SPDX-License-Identifier: Apache-2.0
"""Messages that are copied equal, to the byte, what ``apply_async`` pushes; what cannot be copied is not."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import redis
from celery import signals

from dispatcher.backends.base import Rejected, Sent
from dispatcher.backends.celery import pipeline
from dispatcher.backends.celery.app import create_app
from dispatcher.backends.celery.batch import CHUNK
from dispatcher.backends.celery.publisher import connect
from tests.support.backend_harness import eventually, make_submission
from tests.support.celery_backend import body_of, make_backend, make_conf, messages

pytestmark = pytest.mark.needs("redis")

OTHER_EACH_TIME = ("delivery_tag", "reply_to")
"""Properties that name the delivery and the sending thread."""

AWKWARD = '{"token": "jwt", "text": "\\u00e9 \\ud83d\\ude00 \\"quoted\\" \\\\ back", "none": null, "é": "😀"}'
"""A payload with everything that JSON treats in a way of its own."""

CONFIGURATIONS = {
    "default": {},
    "priorities": {
        "config": {
            "task_default_priority": 5,
            "broker_transport_options": {"priority_steps": [0, 2, 4, 6], "sep": ":"},
        },
    },
    "prefix": {"transport": {"global_keyprefix": "tenant:"}},
    "routed": {"config": {"task_routes": {"execute_workload": {"priority": 7}}}},
    "annotated": {"config": {"task_annotations": {"execute_workload": {"time_limit": 30, "priority": 2}}}},
    "transient": {"config": {"task_default_delivery_mode": "transient"}},
}
"""Changes to ``extra_celery_config`` and to ``[celery_broker_transport_options]`` that copying stands."""

SINGLY = {
    "compressed": {"config": {"task_compression": "gzip"}},
    "expires": {"config": {"task_annotations": {"execute_workload": {"expires": 300}}}},
    "protocol-1": {"config": {"task_protocol": 1}},
    "events": {"config": {"task_send_sent_event": True}},
}
"""Changes with which messages are sent one by one."""


@pytest.fixture
def configure(redis_url, monkeypatch):
    """Return a function that returns the configuration and the app of an executor."""

    def configured(config=None, transport=None):
        if config:
            monkeypatch.setenv("AIRFLOW__CELERY__EXTRA_CELERY_CONFIG", json.dumps(config))
        for key, value in (transport or {}).items():
            monkeypatch.setenv(f"AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__{key.upper()}", value)
        conf = make_conf(redis_url, redis_url)
        return conf, create_app(conf, 5.0)[0]

    return configured


@contextmanager
def opened(conf):
    backend = make_backend(conf)
    backend.start("1")
    try:
        yield backend
    finally:
        backend.stop()


def keys_and_messages(url):
    """Return what is in each list, without what differs each time."""
    found = []
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter():
            if client.type(key) != b"list":
                continue
            for raw in client.lrange(key, 0, -1):
                properties = json.loads(raw)["properties"]
                text = raw.decode()
                for name in OTHER_EACH_TIME:
                    text = text.replace(properties[name], "*")
                found.append((key, text))
    return found


def send_by_apply_async(app, submission):
    """Send a message as Celery does it, to be compared with a copy."""
    connection = connect(app)
    app.tasks["execute_workload"].apply_async(
        args=(submission.payload,),
        task_id=submission.token,
        queue=submission.queue,
        producer=app.amqp.Producer(connection, auto_declare=False),
        retry=False,
        argsrepr=f"('<workload of {submission.token}>',)",
    )
    connection.release()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_copy_equals_what_apply_async_pushes(redis_url, configure, name, monkeypatch):
    """The one place that knows how kombu pushes: it fails where kombu or Celery change that."""
    conf, app = configure(**CONFIGURATIONS[name])
    filled = []
    fill = pipeline.Form.fill
    monkeypatch.setattr(pipeline.Form, "fill", lambda *args: filled.append(args) or fill(*args))
    submission = make_submission(payload=AWKWARD)
    with opened(conf) as backend:
        assert backend.submit([submission]) == {submission.token: Sent(submission.token)}
    ours = keys_and_messages(redis_url)
    send_by_apply_async(app, submission)

    both = keys_and_messages(redis_url)

    assert len(filled) == 1
    assert len(ours) == 1
    assert both == ours * 2


@pytest.mark.parametrize("name", SINGLY)
def test_what_cannot_be_copied_is_sent_by_apply_async(redis_url, configure, name, monkeypatch):
    conf, _ = configure(**SINGLY[name])
    monkeypatch.setattr(pipeline.Form, "fill", lambda *_: pytest.fail("copied"))
    batch = [make_submission() for _ in range(3)]

    with opened(conf) as backend:
        results = backend.submit(batch)

    assert results == {one.token: Sent(one.token) for one in batch}
    assert [one["properties"]["correlation_id"] for one in messages(redis_url)] == [
        one.token for one in batch
    ]


def test_a_queue_that_expires_gets_these_messages_and_no_other(redis_url, configure):
    """kombu from 5.7 on pushes them in a pipeline; what stands for a message must not be pushed there."""
    queue = {"exchange": "default", "routing_key": "default", "queue_arguments": {"x-expires": 60_000}}
    conf, _ = configure({"task_queues": {"default": queue}})
    batch = [make_submission() for _ in range(3)]

    with opened(conf) as backend:
        results = backend.submit(batch)

    assert results == {one.token: Sent(one.token) for one in batch}
    assert [one["properties"]["correlation_id"] for one in messages(redis_url)] == [
        one.token for one in batch
    ]


def test_whoever_listens_to_celery_hears_of_each_message(redis_url, configure):
    """Tracing adds its headers there."""
    conf, _ = configure()

    def trace(headers=None, **_):
        headers["traceparent"] = "of " + headers["id"]

    signals.before_task_publish.connect(trace)
    try:
        batch = [make_submission() for _ in range(3)]
        with opened(conf) as backend:
            backend.submit(batch)
    finally:
        signals.before_task_publish.disconnect(trace)

    assert [one["headers"]["traceparent"] for one in messages(redis_url)] == [
        f"of {one.token}" for one in batch
    ]


def test_copies_keep_their_own_payload_and_have_a_tag_each(redis_url, configure):
    conf, _ = configure()
    batch = [make_submission(payload=f"{number} {AWKWARD}") for number in range(1200)]

    with opened(conf) as backend:
        waiting = {one.token: one for one in batch}
        while waiting:
            results = backend.submit(list(waiting.values()))
            waiting = {token: one for token, one in waiting.items() if not isinstance(results[token], Sent)}

    sent = messages(redis_url)
    assert [(one["headers"]["id"], body_of(one)[0]) for one in sent] == [
        (one.token, [one.payload]) for one in batch
    ]
    assert len({one["properties"]["delivery_tag"] for one in sent}) == len(batch)


def test_the_first_ones_are_sent_while_the_last_ones_are_made(redis_url, configure, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CELERY__OPERATION_TIMEOUT", "60")
    conf, _ = configure()
    first, last = [make_submission() for _ in range(CHUNK)], make_submission()

    def batch():
        yield from first
        eventually(lambda: len(messages(redis_url)) == CHUNK, "the first ones are sent")
        yield last

    with opened(conf) as backend:
        results = backend.submit(batch())

    assert results == {one.token: Sent(one.token) for one in (*first, last)}
    assert [one["headers"]["id"] for one in messages(redis_url)] == [one.token for one in (*first, last)]


def test_a_payload_that_is_no_text_holds_up_no_other(redis_url, configure):
    conf, _ = configure()
    good, bad = make_submission(), make_submission(payload=object(), priority=5)

    with opened(conf) as backend:
        results = backend.submit([good, bad])

    assert results[good.token] == Sent(good.token)
    assert isinstance(results[bad.token], Rejected)


def test_fault_32_the_highest_priority_is_sent_first_whatever_the_queue(redis_url, configure):
    """Known fault 32: the lowest priority went first."""
    conf, _ = configure()
    weights = [1, 10, 5, 10, 1, 7]
    batch = [
        make_submission(priority=weight, queue=queue) for weight in weights for queue in ("default", "other")
    ]

    with opened(conf) as backend:
        backend.submit(batch)

    for queue in ("default", "other"):
        expected = sorted((one for one in batch if one.queue == queue), key=lambda one: -one.priority)
        assert [one["headers"]["id"] for one in messages(redis_url, queue)] == [one.token for one in expected]
