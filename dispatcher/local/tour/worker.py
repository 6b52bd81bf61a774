# SPDX-License-Identifier: Apache-2.0
"""The Celery worker, from outside: which queues it consumes, and what it says of a launch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow.providers.celery.executors.celery_executor_utils import app

from dispatcher.local.errors import LocalModeError

if TYPE_CHECKING:
    from pathlib import Path

CONTROL_SECONDS = 5.0

_REFUSAL = r"launch {token} of \w+ \S+ was refused at the claim \((?P<reason>\w+)\)"


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


def refusal_in(text: str, token: str) -> str | None:
    """Return the reason for which a worker refused a launch, by what it wrote; None if it did not.

    :param text: output of a worker or a pod
    :param token: the launch token
    """
    found = re.search(_REFUSAL.format(token=re.escape(token)), text, re.IGNORECASE)
    return found["reason"] if found else None


class LogReader:
    """Reads what is appended to a log from now on.

    :param path: the log file
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def read(self) -> str:
        """Return everything that was appended since this object was made."""
        with self._path.open("rb") as log:
            log.seek(self._start)
            return log.read().decode(errors="replace")


def _require(replies: list[dict[str, dict[str, str]]] | None, queue: str) -> None:
    answers = [answer for reply in replies or () for answer in reply.values()]
    if not answers or any("ok" not in answer for answer in answers):
        raise LocalModeError(f"no Celery worker took the order about the queue {queue}: {answers}")
