# SPDX-License-Identifier: Apache-2.0
"""The Celery worker, from outside: which queues it consumes."""

from __future__ import annotations

from airflow.providers.celery.executors.celery_executor_utils import app

from dispatcher.local.errors import LocalModeError

CONTROL_SECONDS = 5.0


def consume(queue: str) -> None:
    """Have the worker consume one more queue.

    :raises LocalModeError: no worker answered
    """
    _require(app.control.add_consumer(queue, reply=True, timeout=CONTROL_SECONDS, limit=1), queue)


def leave(queue: str) -> None:
    """Have the worker consume a queue no longer.

    :raises LocalModeError: no worker answered
    """
    _require(app.control.cancel_consumer(queue, reply=True, timeout=CONTROL_SECONDS, limit=1), queue)


def _require(replies: list[dict[str, dict[str, str]]] | None, queue: str) -> None:
    answers = [answer for reply in replies or () for answer in reply.values()]
    if not answers or any("ok" not in answer for answer in answers):
        raise LocalModeError(f"no Celery worker took the order about the queue {queue}: {answers}")
