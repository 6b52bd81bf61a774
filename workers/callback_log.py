# SPDX-License-Identifier: Apache-2.0
"""Read why a callback failed from the log that Airflow's callback supervisor writes.

The supervisor gives back an exit code only; the exception's text is in the callback's log, one JSON object
a line, under the event ``Callback failed``. Secrets are masked there already.
"""

from __future__ import annotations

import json
from pathlib import Path

from airflow.sdk.configuration import conf

FAILURE_EVENT = "Callback failed"


class CallbackLog:
    """The part of a callback's log file that this execution writes.

    Made before the callback runs: an earlier launch may have written to the same file, and what it wrote is
    not looked at.

    :param log_path: the workload's log path, relative to ``[logging] base_log_folder``; None if it has none
    """

    def __init__(self, log_path: str | None) -> None:
        self._path = Path(conf.get("logging", "base_log_folder"), log_path) if log_path else None
        self._start = self._path.stat().st_size if self._path and self._path.exists() else 0

    def failure(self) -> str | None:
        """Return the text of the last failure that was logged, or None where there is none."""
        if self._path is None or not self._path.exists():
            return None
        failure: str | None = None
        with self._path.open("rb") as file:
            file.seek(self._start)
            for line in file:
                failure = _failure_text(line) or failure
        return failure


def _failure_text(line: bytes) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("event") != FAILURE_EVENT:
        return None
    text = entry.get("error")
    return text if isinstance(text, str) else None
