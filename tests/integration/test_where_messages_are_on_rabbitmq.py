# SPDX-License-Identifier: Apache-2.0
"""What RabbitMQ tells of messages: counts only, so whatever may be elsewhere is not taken as lost."""

from __future__ import annotations

import pytest
from kombu import Connection

from dispatcher.backends.celery import evidence
from dispatcher.backends.celery.app import create_app
from tests.support.broker_sites import open_site
from tests.support.celery_backend import make_conf

pytestmark = pytest.mark.needs("rabbitmq")

CONTROL = "AIRFLOW__CELERY__EXTRA_CELERY_CONFIG"


@pytest.fixture
def site(monkeypatch):
    with open_site("rabbitmq") as site:
        monkeypatch.setenv(CONTROL, site.environment[CONTROL])
        monkeypatch.setattr(evidence, "REPLY_SECONDS", 0.2)
        yield site


@pytest.fixture
def look(site):
    app, _ = create_app(make_conf(site.direct, site.results), 5.0)
    yield lambda: evidence.gather(app, {"token": site.queue})
    app.close()


@pytest.fixture
def channel(site):
    with Connection(site.direct) as connection, connection.channel() as channel:
        yield channel


def test_a_queue_that_is_not_there_holds_nothing_and_nobody_consumes_it(site, look):
    assert look() == evidence.Evidence(frozenset({"token"}), frozenset({site.queue}), 0)


def test_in_a_queue_that_is_not_empty_it_may_be(site, look, channel):
    with Connection(site.direct) as connection:
        connection.SimpleQueue(site.queue).put("another message")
        connection.SimpleQueue(site.queue).close()
    found = look()
    assert (found.absent, found.unserved) == (frozenset(), {site.queue})


def test_a_consumer_that_does_not_say_what_it_holds_may_have_it(site, look, channel):
    channel.queue_declare(site.queue, durable=True, auto_delete=False)
    channel.basic_consume(site.queue, no_ack=False)
    found = look()
    assert (found.absent, found.unserved) == (frozenset(), frozenset())
