# SPDX-License-Identifier: Apache-2.0
"""Child processes end with everything they started."""

from __future__ import annotations

import os
import signal
import sys
import time

import psutil
import pytest

from dispatcher.local import processes

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def start(code, name="child"):
        child = processes.start(
            name,
            [sys.executable, "-c", code],
            env=dict(os.environ),
            cwd=tmp_path,
            log=tmp_path / f"{name}.log",
        )
        started.append(child)
        return child

    yield start
    processes.stop(started, 0)


def wait_for_output(child):
    deadline = time.monotonic() + 30
    while not child.output().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return child.output()


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_that_ends_on_sigterm_is_given_the_time(start):
    child = start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(7)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    wait_for_output(child)

    processes.stop([child], 30)

    assert child.exit_code == 7
    assert child.tail(1) == "bye"


def test_one_that_does_not_is_killed_with_a_child_of_another_process_group(start):
    child = start(STUBBORN)
    grandchild = int(wait_for_output(child))
    assert os.getpgid(grandchild) != os.getpgid(child.popen.pid)

    processes.stop([child], 0)

    assert child.exit_code == -signal.SIGKILL
    assert not runs(grandchild)


def test_what_a_dead_one_left_behind_is_killed(start):
    child = start(STUBBORN)
    grandchild = int(wait_for_output(child))
    child.popen.kill()
    child.popen.wait()
    assert runs(grandchild)

    processes.stop([child], 0)

    assert not runs(grandchild)


def test_the_tail_is_the_end_of_the_log(start):
    child = start("for n in range(100): print(n)")
    child.popen.wait()

    assert child.tail(2) == "98\n99"
