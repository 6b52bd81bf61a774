# SPDX-License-Identifier: Apache-2.0
"""Ends the processes of pods, also when the cluster itself was killed.

The cluster starts this module as a small process of its own and tells it through a pipe which process groups
run. When the pipe ends, by a stop or by a kill of the cluster, whatever still runs is ended, and the
cluster's directory is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

MARKER_VARIABLE = "DISPATCHER_LOCAL_POD"
"""Environment variable that all processes of a pod inherit: cluster and pod, with a slash between them."""

GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.05
_PROCESSES = Path("/proc")


def main() -> int:
    """Watch over the pods of one cluster: the arguments are its mark and its directory.

    Each line of standard input is ``+`` or ``-`` and the id of a process group that started or ended.
    """
    # A Ctrl-C in the terminal reaches the whole session; the cluster decides when its pods end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, directory = sys.argv[1:]
    end_groups(_running_groups(sys.stdin.buffer))
    for process in marked(mark):
        signal_process(process, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)
    return 0


def end_groups(groups: Iterable[int], grace_seconds: float = GRACE_SECONDS) -> None:
    """End process groups: ask, wait, kill."""
    left = set(groups)
    for group in left:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = {group for group in left if group_exists(group)}
    for group in left:
        signal_group(group, signal.SIGKILL)


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to all processes of a group, if there are any."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_process(process: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def group_exists(group: int) -> bool:
    """Say whether a process group has processes."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def marked(mark: str) -> list[int]:
    """Return the processes that carry a mark: also those that left the process group of their pod.

    :param mark: a cluster, or a cluster and a pod with a slash between them.
    :return: process ids; none where the system does not tell the environment of a process.
    """
    wanted = f"\0{MARKER_VARIABLE}={mark}".encode()
    found = []
    for entry in _PROCESSES.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environment = b"\0" + entry.read_bytes()
            if wanted + b"\0" in environment or wanted + b"/" in environment:
                found.append(int(entry.parent.name))
    return found


def _running_groups(lines: IO[bytes]) -> set[int]:
    groups: set[int] = set()
    for line in lines:
        change, group = line[:1], int(line[1:])
        if change == b"+":
            groups.add(group)
        else:
            groups.discard(group)
    return groups


if __name__ == "__main__":
    sys.exit(main())
