# SPDX-License-Identifier: Apache-2.0
"""A file in which the bodies of the example's tasks and callbacks note that they ran.

It proves what ran, how often and where. Without the environment variables below nothing is noted, so the
example runs anywhere. Pure: no import of Airflow.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

JOURNAL_VARIABLE = "DISPATCHER_EXAMPLE_JOURNAL"
"""Environment variable with the path of the file."""

PLACE_VARIABLE = "DISPATCHER_EXAMPLE_PLACE"
"""Environment variable of a worker with the name of its backend."""

GATE_VARIABLE = "DISPATCHER_EXAMPLE_GATE"
"""Environment variable with the path of a file for whose appearance ``wait_for_gate`` waits."""

GATE_SECONDS = 120
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One run of one body.

    :param subject: id of the task, or name of the callback's function
    :param map_index: index of a mapped task; -1 otherwise
    :param try_number: which try of the task; 0 for a callback
    :param place: backend of the worker; ``elsewhere`` if it does not say
    """

    subject: str
    map_index: int
    try_number: int
    place: str


def note(subject: str, map_index: int = -1, try_number: int = 0) -> None:
    """Append one entry to the journal, if there is one.

    :param subject: id of the task, or name of the callback's function
    :param map_index: index of a mapped task
    :param try_number: which try of the task
    """
    path = os.environ.get(JOURNAL_VARIABLE)
    if not path:
        return
    entry = Entry(subject, map_index, try_number, os.environ.get(PLACE_VARIABLE, "elsewhere"))
    # One short write in append mode: lines of several processes do not mix.
    with Path(path).open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(asdict(entry)) + "\n")


def read(path: Path) -> list[Entry]:
    """Return the entries of a journal, oldest first."""
    if not path.exists():
        return []
    return [Entry(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def wait_for_gate() -> None:
    """Wait until the gate's file appears, if there is a gate.

    :raises TimeoutError: it did not appear in time
    """
    path = os.environ.get(GATE_VARIABLE)
    deadline = time.monotonic() + GATE_SECONDS
    while path and not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the gate {path} did not open within {GATE_SECONDS} s")
        time.sleep(POLL_SECONDS)
