# SPDX-License-Identifier: Apache-2.0
"""Child processes of a test: started in a session of their own, logged to a file, ended by their id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 20
POLL_SECONDS = 0.1


class ProcessEndedError(RuntimeError):
    """A child process ended, or did not get ready in time; the message holds the end of its log."""


@dataclass(frozen=True)
class ChildProcess:
    """A running child process.

    :param popen: the process; it leads a process group of its own.
    :param log: file that holds its output.
    """

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its group."""
        return self.popen.pid

    def running(self) -> bool:
        """Say whether the process still runs."""
        return self.popen.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until ``ready`` says yes.

        :param seconds: how long to wait at most.
        :raises ProcessEndedError: the process ended first, or the time is over.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running():
                raise ProcessEndedError(f"exit code {self.popen.returncode}; its log ends:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ProcessEndedError(f"not ready after {seconds:.0f} s; its log ends:\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def ask_to_end(self) -> None:
        """Send SIGTERM, and do not wait."""
        if self.running():
            self.popen.terminate()

    def stop(self) -> None:
        """Ask the process to end, and kill its whole group when it does not, or leaves children behind."""
        self.ask_to_end()
        try:
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(STOP_SECONDS)
        finally:  # the test's own time limit may strike while we wait
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait()


def start(command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> ChildProcess:
    """Start ``command`` with output to ``log``; the caller stops it."""
    with log.open("ab") as output:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    return ChildProcess(popen, log)


def free_port() -> int:
    """Return a TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
