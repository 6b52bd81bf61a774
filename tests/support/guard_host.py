# SPDX-License-Identifier: Apache-2.0
"""A worker process that runs workloads under the guard, one after the other, for tests.

The test process itself must not: the guard forks, sets signal handlers and renames its process. One process
for many workloads saves importing Airflow for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

SETTINGS = {
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "2",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MIN": "0.01",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "0.02",
}
"""What a worker of a test is configured with, so that it does not wait for long."""


class GuardHost:
    """The process; use it as a context manager.

    :param folder: where it writes its log and where callbacks and tasks leave their marks.
    :param env: further environment variables.
    """

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        self.log = folder / "guard-host.log"
        self._marks = folder / "marks"
        self._env = {**os.environ, **SETTINGS, "GUARD_MARKS": str(self._marks), **(env or {})}

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                cwd=Path(__file__).parents[2],
                text=True,
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def run(self, workload: Any, server: str, report_attempts: int | None = None) -> dict[str, Any]:
        """Run a workload and return its outcome: ``type`` and fields, or the type and text of the error.

        :param report_attempts: of a callback, how often its result is reported, with short pauses.
        """
        assert self._process.stdin
        assert self._process.stdout
        order = {"payload": workload.model_dump_json(), "server": server, "attempts": report_attempts}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the guard host ended; its log says:\n{self.log.read_text()[-3000:]}"
        return json.loads(answer)

    def take_marks(self) -> list[str]:
        """Return the marks that were left since the last call."""
        if not self._marks.exists():
            return []
        marks = self._marks.read_text().splitlines()
        self._marks.unlink()
        return marks

    def take_log(self) -> str:
        """Return what was logged since the last call."""
        text = self.log.read_text()
        os.truncate(self.log, 0)
        return text


def _run(payload: str, server: str, attempts: int | None) -> Any:
    from workers.callback_api import ReportRetries
    from workers.callback_guard import run_callback
    from workers.execution import execution_of_callback
    from workers.guard import run_workload
    from workers.payload import read_workload

    workload = read_workload(payload)
    if attempts is None:
        return run_workload(workload, server=server)
    execution = execution_of_callback(workload)
    return run_callback(workload, execution, server, ReportRetries(attempts, wait_min=0.01, wait_max=0.02))


def main() -> None:
    """Answer each order on stdin with one line on stdout; logs go to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a workload prints must not look like an answer

    from airflow.sdk.log import configure_logging

    configure_logging(output=sys.stderr.buffer, json_output=False, colored_console_log=False)
    for line in sys.stdin:
        try:
            outcome = _run(**json.loads(line))
            # The claimant is a nonce: tests compare what is the same in each run.
            told = {name: value for name, value in asdict(outcome).items() if name != "claimant"}
            answer = {"type": type(outcome).__name__, **told}
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is the answer
            answer = {"type": type(exc).__name__, "text": str(exc)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
