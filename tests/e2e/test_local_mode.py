# SPDX-License-Identifier: Apache-2.0
"""``make demo`` and ``make up`` with nothing but Python on the machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest

pytestmark = pytest.mark.slow

READY_SECONDS = 300
END_SECONDS = 60


@pytest.fixture
def start(tmp_path):
    started = []

    def start(module):
        env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        for name in ("REDIS_URL", "POSTGRES_URL", "KUBECONFIG"):
            env.pop(name, None)
        output = tmp_path / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                env={**env, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
                cwd=tmp_path,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        return process, output

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.wait(END_SECONDS)


def processes_with(text):
    found = []
    for process in psutil.process_iter():
        try:
            if any(text in value for value in process.environ().values()):
                found.append(process.cmdline())
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def wait_for_line(process, output, pattern):
    deadline = time.monotonic() + READY_SECONDS
    while not (found := re.search(pattern, output.read_text())):
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.5)
    return found


@pytest.mark.timeout(900)
def test_the_demo_shows_the_tour_and_leaves_nothing_behind(start, tmp_path):
    process, output = start("dispatcher.local.demo")

    assert process.wait(800) == 0, output.read_text()

    text = output.read_text()
    assert re.findall(r"refused: (\w+)", text) == [
        "launch_superseded",
        "launch_superseded",
        "launch_consumed",
    ]
    assert re.search(r"hybrid_tour/load_part\[1\]@\S+ +\| celery +\| default", text)
    assert re.search(r"hybrid_tour/fit_curve@\S+ +\| kubernetes +\| kubernetes", text)
    assert not list(tmp_path.glob("dispatcher-local-*"))
    assert processes_with(str(tmp_path / "dispatcher-local-")) == []


@pytest.mark.timeout(600)
def test_up_serves_the_ui_until_ctrl_c(start, tmp_path):
    process, output = start("dispatcher.local.up")
    url = wait_for_line(process, output, r"Airflow runs at (\S+)")[1]
    user, password = wait_for_line(process, output, r"log in as (\S+) with the password (\S+)").groups()
    assert httpx.get(f"{url}/", follow_redirects=True, timeout=30).status_code == 200
    login = httpx.post(f"{url}/auth/token", json={"username": user, "password": password}, timeout=30)
    assert login.status_code == 201
    assert processes_with(str(tmp_path / "dispatcher-local-"))

    process.send_signal(signal.SIGINT)

    assert process.wait(END_SECONDS) == 128 + signal.SIGINT
    assert not list(tmp_path.glob("dispatcher-local-*"))
    assert processes_with(str(tmp_path / "dispatcher-local-")) == []
