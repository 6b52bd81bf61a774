# SPDX-License-Identifier: Apache-2.0
"""What the tasks and callbacks of a run do: they note that they began, wait a little, and note their end.

A body that is killed leaves the first note alone. Pure but for Celery, where there is no pod.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
import uuid
from pathlib import Path
from typing import Any

NOTES_VARIABLE = "CHAOS_NOTES"
"""Environment variable with the path of the file that all bodies append to."""

PLACE_VARIABLE = "CHAOS_PLACE"
"""Environment variable of a worker with a name that no other process has."""

TOKEN_VARIABLE = "CHAOS_LAUNCH_TOKEN"
"""Environment variable of a pod with the launch token it was made for."""

SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 3.0


def run_task(instance: Any) -> None:
    """Do what a task does.

    :param instance: the task instance, as the context has it
    """
    map_index = -1 if instance.map_index is None else instance.map_index
    subject = [instance.dag_id, instance.run_id, instance.task_id, map_index, instance.try_number]
    _run("task", subject)


def run_on_celery() -> None:
    """Do what a callback on Celery does."""
    _run("callback", [])


def run_on_kubernetes() -> None:
    """Do what a callback in a pod does."""
    _run("callback", [])


def _run(kind: str, subject: list[Any]) -> None:
    token = _token()
    body = str(uuid.uuid4())
    identity = {"kind": kind, "subject": subject, "token": token, "place": place(token)}
    _note({"body": body, "event": "began", **identity, "pid": os.getpid(), "host": socket.gethostname()})
    _work()
    _note({"body": body, "event": "ended"})


def _work() -> None:
    time.sleep(random.uniform(SHORTEST_SECONDS, LONGEST_SECONDS))


def place(token: str) -> str:
    """Return where this process is: a worker by its name, or a pod by its token."""
    return os.environ.get(PLACE_VARIABLE, f"pod {token}")


def _token() -> str:
    if in_pod := os.environ.get(TOKEN_VARIABLE):
        return in_pod
    from celery import current_task

    return str(current_task.request.id)


def _note(note: dict[str, Any]) -> None:
    # One short write in append mode: lines of several processes do not mix.
    with Path(os.environ[NOTES_VARIABLE]).open("a", encoding="utf-8") as notes:
        notes.write(json.dumps({**note, "at": time.time()}) + "\n")
