# SPDX-License-Identifier: Apache-2.0
"""The guardian: it knows what runs, finds what left its group, and ends both when the pipe ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from dispatcher.local.cluster import guardian

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system has no /proc")


@pytest.fixture
def start():
    """Yield what starts a sleeping process with a mark; all are ended afterwards."""
    with ExitStack() as stack:

        def begin(mark, *command):
            environment = {**os.environ, guardian.MARKER_VARIABLE: mark}
            process = subprocess.Popen(
                command or ["sleep", "60"], env=environment, start_new_session=True, stdout=subprocess.PIPE
            )
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(guardian.signal_group, process.pid, signal.SIGKILL)
            return process

        yield begin


def ignores(process, number):
    """Say whether a process ignores a signal, as the system tells it."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (mask,) = [line.split()[1] for line in lines if line.startswith("SigIgn")]
    return bool(int(mask, 16) >> (number - 1) & 1)


@needs_proc
def test_marked_processes_are_found_by_cluster_and_by_pod(start):
    one, two, other = start("c/one"), start("c/two"), start("cc/one")

    assert set(guardian.marked("c")) == {one.pid, two.pid}
    assert guardian.marked("c/one") == [one.pid]
    assert guardian.marked("cc") == [other.pid]
    assert guardian.marked("none") == []


def test_groups_are_asked_and_then_killed(start):
    listens = start("g/one")
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    deaf = start("g/two", "sh", "-c", script)
    assert deaf.stdout.readline() == b"ready\n"

    guardian.end_groups([listens.pid, deaf.pid], grace_seconds=0.3)

    assert listens.wait(5) == -signal.SIGTERM
    assert deaf.wait(5) == -signal.SIGKILL


def test_signals_to_what_is_gone_are_no_error():
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait()

    guardian.signal_process(process.pid, signal.SIGTERM)
    guardian.signal_group(process.pid, signal.SIGTERM)
    assert guardian.group_exists(process.pid) is False
    assert guardian.group_exists(os.getpgid(0)) is True


@needs_proc
def test_the_end_of_the_pipe_ends_what_still_runs(start, tmp_path):
    directory = tmp_path / "pods"
    (directory / "pod").mkdir(parents=True)
    told, ended, stray = start("x/one"), start("y/two"), start("x/three")
    command = [sys.executable, "-I", guardian.__file__, "x", str(directory)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    watcher.stdin.write(b"+%d\n+%d\n-%d\n" % (told.pid, ended.pid, ended.pid))
    watcher.stdin.flush()
    while not ignores(watcher.pid, signal.SIGINT):
        assert watcher.poll() is None
    watcher.send_signal(signal.SIGINT)
    assert told.poll() is None

    watcher.stdin.close()

    assert watcher.wait(20) == 0
    assert told.wait(5) == -signal.SIGTERM
    assert stray.wait(5) == -signal.SIGKILL
    assert ended.poll() is None
    assert not directory.exists()
