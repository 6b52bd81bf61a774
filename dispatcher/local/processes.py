# SPDX-License-Identifier: Apache-2.0
"""Child processes: each in a session of its own, so that it can be ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

POLL_SECONDS = 0.1
TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A process that was started here.

    :param name: for people
    :param popen: the process, which leads a session
    :param log: file that holds its output; None if it writes to ours
    """

    name: str
    popen: subprocess.Popen[bytes]
    log: Path | None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.popen.poll()

    def output(self) -> str:
        """Return what it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log else ""

    def tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of what it wrote."""
        return "\n".join(self.output().splitlines()[-lines:])


def start(
    name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path | None
) -> ChildProcess:
    """Start a process in a session of its own; ``stop`` ends it.

    :param name: for people
    :param command: program and arguments
    :param env: its whole environment
    :param cwd: its working directory
    :param log: where its output is appended; None leaves it our own output
    """
    output = None if log is None else log.open("ab")
    try:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    finally:
        if output is not None:
            output.close()
    return ChildProcess(name, popen, log)


def stop(processes: Iterable[ChildProcess], seconds: float) -> None:
    """End processes, all at the same time, and everything in their sessions.

    :param processes: what to end; those that ended by themselves may have left others behind
    :param seconds: how long they may take after SIGTERM before SIGKILL
    """
    children = list(processes)
    for child in children:
        if child.exit_code is None:
            child.popen.terminate()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(child.exit_code is None for child in children):
        time.sleep(POLL_SECONDS)
    kill(children)


def kill(processes: Iterable[ChildProcess]) -> None:
    """Kill processes at once, and everything in their sessions.

    :param processes: what to kill; those that ended by themselves may have left others behind
    """
    children = list(processes)
    _kill_sessions({child.popen.pid for child in children})
    for child in children:
        child.popen.wait()


def _kill_sessions(leaders: set[int]) -> None:
    # By session and not by group: Airflow gives each running task a process group of its own.
    while members := [pid for pid in psutil.pids() if _session_of(pid) in leaders and not _is_zombie(pid)]:
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
