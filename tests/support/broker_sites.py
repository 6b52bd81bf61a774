# SPDX-License-Identifier: Apache-2.0
"""A corner of a broker behind a relay, for tests of what happens when the broker or a worker goes away."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from celery import Celery
from kombu import Connection

from tests.support import services
from tests.support.celery_worker import PLAIN, CeleryWorker
from tests.support.relay import Relay

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_RESULTS = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"


@dataclass
class Site:
    """A broker as executors and workers see it: through a relay, with names of its own.

    :param kind: ``redis`` or ``rabbitmq``
    :param direct: the broker's own URL
    :param broker: its URL through the relay
    :param results: URL of the result back end: Redis through the relay, or the metadata database
    """

    kind: str
    direct: str
    broker: str
    results: str
    relay: Relay
    name: str = field(default_factory=lambda: f"site-{secrets.token_hex(4)}")

    @property
    def queue(self) -> str:
        """The queue that its worker consumes."""
        return f"{self.name}-work"

    @property
    def parked(self) -> str:
        """A queue that nobody consumes."""
        return f"{self.name}-parked"

    @property
    def node(self) -> str:
        """The node name of its worker."""
        return f"{self.name}@test"

    @property
    def environment(self) -> dict[str, str]:
        """What executors and workers are configured with."""
        return {
            "AIRFLOW__CELERY__BROKER_URL": self.broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": self.results,
            "AIRFLOW__CELERY__EXTRA_CELERY_CONFIG": json.dumps({"control_exchange": self.name}),
        }

    def worker(self, server: str, folder: Path, **env: str) -> CeleryWorker:
        """Return a worker that is not started; it takes one task at a time, and one more in reserve.

        :param server: URL of the execution API
        :param folder: for its log and the marks
        """
        command = [*PLAIN[:-1], self.queue, "-n", self.node, "--skip-serve-logs"]
        env = {
            **self.environment,
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "1",
            "AIRFLOW__CELERY__WORKER_PREFETCH_MULTIPLIER": "2",
            **env,
        }
        return CeleryWorker(command, self.broker, server, folder, env, results=self.results)

    def app(self) -> Celery:
        """Return a Celery app at this broker; the caller closes it."""
        app = Celery(self.name, broker=self.broker, set_as_current=False)
        app.conf.control_exchange = self.name
        return app

    def waiting(self, queue: str | None = None) -> int:
        """Return how many messages wait in a queue, its worker's by default."""
        with Connection(self.direct) as connection, connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue or self.queue, passive=True).message_count)
            except connection.channel_errors:
                return 0

    def take_all(self, queue: str) -> list[dict[str, Any]]:
        """Take all messages out of a queue, and return their headers."""
        with Connection(self.direct) as connection, connection.channel() as channel:
            taken = []
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                taken.append(message.headers)
            return taken

    def take_one(self, queue: str) -> Any:
        """Take the next message out of a queue, to be delivered as often as the test likes."""
        with Connection(self.direct) as connection, connection.channel() as channel:
            return channel.basic_get(queue, no_ack=True)

    def deliver(self, message: Any) -> None:
        """Put a message into the queue of the worker, as it was sent."""
        with Connection(self.direct) as connection, connection.Producer() as producer:
            producer.publish(
                message.body,
                routing_key=self.queue,
                headers=message.headers,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                correlation_id=message.properties["correlation_id"],
            )


@contextmanager
def open_site(kind: str) -> Iterator[Site]:
    """Open a corner of a broker; it is emptied at the end.

    :param kind: ``redis`` or ``rabbitmq``
    """
    with ExitStack() as stack:
        if kind == "redis":
            direct = stack.enter_context(services.claimed_redis_database())
        else:
            direct = os.environ["RABBITMQ_URL"]
        parts = urlsplit(direct)
        relay = stack.enter_context(Relay(parts.hostname or "127.0.0.1", parts.port or 5672))
        credentials, at, _ = parts.netloc.rpartition("@")
        broker = urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{relay.port}"))
        results = broker if kind == "redis" else "db+" + os.environ[DATABASE_RESULTS]
        site = Site(kind, direct, broker, results, relay)
        try:
            yield site
        finally:
            if kind == "rabbitmq":
                _remove(site)


def _remove(site: Site) -> None:
    with Connection(site.direct) as connection, connection.channel() as channel:
        for queue in (site.queue, site.parked, f"{site.node}.{site.name}.pidbox"):
            channel.queue_delete(queue)
        for exchange in (
            site.queue,
            f"{site.name}-parked",
            f"{site.name}.pidbox",
            f"reply.{site.name}.pidbox",
        ):
            channel.exchange_delete(exchange)
