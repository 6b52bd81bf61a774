# SPDX-License-Identifier: Apache-2.0
"""The Celery backend under the contract suite: the test plays the worker."""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import redis
from airflow.executors.base_executor import ExecutorConf
from airflow.providers.celery.executors.celery_executor_utils import create_celery_app

from dispatcher.backends.celery.backend import CeleryBackend
from dispatcher.settings import load
from tests.support import services
from tests.support.backend_harness import BackendHarness, make_submission
from tests.support.celery_worker import embedded_broker
from tests.support.processes import free_port

if TYPE_CHECKING:
    import pytest

    from dispatcher.backends.base import Backend, Submission

QUEUE = "default"


class CeleryConf(ExecutorConf):
    """The configuration of an executor, with settings of the test's own in section ``[celery]``.

    :param settings: by key
    """

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self._settings = settings

    def get(self, section: str, key: str, **kwargs: Any) -> str | None:
        return self._own(section, key) or super().get(section, key, **kwargs)

    def get_mandatory_value(self, section: str, key: str, **kwargs: Any) -> str:
        return self._own(section, key) or super().get_mandatory_value(section, key, **kwargs)

    def has_option(self, section: str, key: str, **kwargs: Any) -> bool:
        return self._own(section, key) is not None or super().has_option(section, key, **kwargs)

    def _own(self, section: str, key: str) -> str | None:
        return self._settings.get(key.lower()) if section == "celery" else None


def make_conf(broker: str, results: str, **settings: str) -> CeleryConf:
    """Return a configuration of section ``[celery]``.

    :param broker: URL of the broker
    :param results: URL of the result back end
    :param settings: further keys
    """
    return CeleryConf(broker_url=broker, result_backend=results, **settings)


def make_backend(conf: CeleryConf) -> CeleryBackend:
    """Return a backend that is not started."""
    return CeleryBackend(conf, load(conf))


def messages(broker: str, queue: str = QUEUE) -> list[dict[str, Any]]:
    """Return the messages that wait in a queue, the next one first, as they are in Redis."""
    with redis.Redis.from_url(broker) as client:
        return [json.loads(raw) for raw in reversed(client.lrange(queue, 0, -1))]


def body_of(message: dict[str, Any]) -> list[Any]:
    """Return args, kwargs and embedded options of a message."""
    return json.loads(base64.b64decode(message["body"]))


def take_message(broker: str, token: str, queue: str = QUEUE) -> None:
    """Take every message of a token out of a queue, as a worker does."""
    with redis.Redis.from_url(broker) as client:
        for raw in client.lrange(queue, 0, -1):
            if json.loads(raw)["headers"]["id"] == token:
                client.lrem(queue, 0, raw)


class CeleryHarness(BackendHarness):
    """Broker and result back end are Redis; a message can be there twice, and nobody sees one vanish."""

    at_most_one = False
    sees_vanished = False
    blocking_seconds = 2.5

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._stack = ExitStack()
        self.broker = self._open_broker()
        self.results = self._results_url()
        self._worker = create_celery_app(make_conf(self.broker, self.results))
        self._listen_for_revocations()

    def _open_broker(self) -> str:
        return self._stack.enter_context(embedded_broker())

    def _results_url(self) -> str:
        return self.broker

    def _listen_for_revocations(self) -> None:
        self._mailbox = self._stack.enter_context(self._worker.connection_for_read())
        node = self._worker.control.mailbox(self._mailbox).Node(
            "worker", handlers={"revoke": lambda _, task_id, **__: self._drop(task_id)}
        )
        self._stack.enter_context(node.listen(channel=self._mailbox.default_channel))
        self._hear()  # the subscription is made with the first look

    def _hear(self) -> None:
        with suppress(TimeoutError):
            while True:
                self._mailbox.drain_events(timeout=0.05)

    def _drop(self, tokens: list[str]) -> None:
        for token in tokens:
            take_message(self.broker, token)

    def create(self) -> Backend:
        return make_backend(make_conf(self.broker, self.results))

    def create_unreachable(self) -> Backend:
        nowhere = f"redis://127.0.0.1:{free_port()}/0"
        return make_backend(make_conf(nowhere, nowhere))

    def bad_submission(self) -> Submission:
        return make_submission(payload=object())

    def count(self, token: str) -> int:
        """Return the messages that wait, and the result if one is stored."""
        self._hear()
        waiting = [message for message in messages(self.broker) if message["headers"]["id"] == token]
        return len(waiting) + (self._worker.backend.get_state(token) != "PENDING")

    def end(self, submission: Submission, *, ok: bool) -> None:
        take_message(self.broker, submission.token)
        if ok:
            self._worker.backend.mark_as_done(submission.token, None)
        else:
            self._worker.backend.mark_as_failure(submission.token, RuntimeError("the body failed"))

    def vanish(self, submission: Submission) -> None:
        take_message(self.broker, submission.token)

    def close(self) -> None:
        super().close()
        self._stack.close()
        self._worker.close()


class CeleryOnRedisHarness(CeleryHarness):
    """Real Redis as broker and result back end."""

    def _open_broker(self) -> str:
        return self._stack.enter_context(services.claimed_redis_database())


class CeleryOnSqliteHarness(CeleryHarness):
    """Results in a SQLite database."""

    def _results_url(self) -> str:
        folder = self.request.getfixturevalue("tmp_path")
        return f"db+sqlite:///{folder / 'results.db'}"


class CeleryOnPostgresHarness(CeleryHarness):
    """Results in a PostgreSQL database."""

    def _results_url(self) -> str:
        return "db+" + self._stack.enter_context(services.own_postgres_database())
