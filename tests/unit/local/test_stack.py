# SPDX-License-Identifier: Apache-2.0
"""The stack says which component died, and ends what it started; components stand for themselves here."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from dispatcher.local import components, processes, readiness, stack
from dispatcher.local.errors import ComponentDiedError, InterruptedBySignalError
from dispatcher.local.interrupts import Interrupts
from dispatcher.local.progress import Progress
from dispatcher.local.services import Cluster, Services

SERVICES = Services(
    broker_url="redis://127.0.0.1:1/0",
    cluster=Cluster(kubeconfig=Path("/none"), namespace="none", pod_template=None),
)
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def failing(code):
    return [sys.executable, "-c", f"import sys; print('what went wrong'); sys.exit({code})"]


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch, tmp_path):
    monkeypatch.setattr(stack.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "stack"))  # noqa: ARG005
    (tmp_path / "stack").mkdir()
    monkeypatch.setattr(components, "migration", lambda: [sys.executable, "-c", ""])
    monkeypatch.setattr(components, "api_server", lambda _port: SLEEP)
    for name in ("dag_processor", "scheduler", "triggerer", "worker"):
        monkeypatch.setattr(components, name, lambda: SLEEP)
    monkeypatch.setattr(readiness, "answers", lambda _url: True)
    monkeypatch.setattr(readiness, "heart_beats", lambda _url, _component: True)
    monkeypatch.setattr(readiness, "worker_answers", lambda _url: True)


@pytest.fixture
def started(monkeypatch):
    started = []
    start = processes.start

    def record(*args, **kwargs):
        started.append(start(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(processes, "start", record)
    return started


def running():
    return stack.running(Progress(), Interrupts(), SERVICES)


def none_is_left(started):
    return not any(psutil.pid_exists(child.popen.pid) for child in started)


def test_every_component_runs_and_ends(started, tmp_path):
    with running() as one:
        one.check()
        assert len(started) == 6
        assert all(child.exit_code is None for child in started[1:])

    assert none_is_left(started)
    assert not (tmp_path / "stack").exists()


def test_a_failed_migration_is_named_with_its_output(monkeypatch, started, tmp_path):
    monkeypatch.setattr(components, "migration", lambda: failing(3))

    with pytest.raises(ComponentDiedError, match=r"(?s)database migration .*exit code 3.*what went wrong"):
        running().__enter__()

    assert none_is_left(started)
    assert (tmp_path / "stack" / "logs" / "database-migration.log").exists()


def test_a_component_that_dies_at_start_is_named_with_its_output(monkeypatch, started):
    monkeypatch.setattr(components, "scheduler", lambda: failing(4))
    monkeypatch.setattr(readiness, "heart_beats", lambda _url, _component: False)

    with pytest.raises(ComponentDiedError, match=r"(?s)scheduler .*exit code 4.*what went wrong"):
        running().__enter__()

    assert none_is_left(started)


def test_a_component_that_dies_later_is_named(started):
    def kill_worker_and_check():
        with running() as one:
            (worker,) = [child for child in started if child.name == components.WORKER]
            worker.popen.kill()
            worker.popen.wait()
            one.check()

    with pytest.raises(ComponentDiedError, match="celery worker ended with exit code -9"):
        kill_worker_and_check()

    assert none_is_left(started)


def test_a_component_that_never_gets_ready_is_named(monkeypatch, started):
    monkeypatch.setattr(readiness, "worker_answers", lambda _url: False)
    monkeypatch.setattr(stack, "START_SECONDS", 0.5)

    with pytest.raises(ComponentDiedError, match="celery worker was not ready"):
        running().__enter__()

    assert none_is_left(started)


def test_a_tour_that_fails_is_a_result_and_one_that_lasts_is_none(monkeypatch, started):
    with running() as one:
        monkeypatch.setattr(components, "tour", lambda _log, _start: failing(1))
        assert one.run_tour(60) == 1

        monkeypatch.setattr(components, "tour", lambda _log, _start: SLEEP)
        with pytest.raises(ComponentDiedError, match="tour took longer than 0 s"):
            one.run_tour(0)

    assert none_is_left(started)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(started, tmp_path, number):
    def run_until_signal():
        interrupts = Interrupts()
        with interrupts.caught(), stack.running(Progress(), interrupts, SERVICES):
            signal.raise_signal(number)

    with pytest.raises(InterruptedBySignalError):
        run_until_signal()

    assert none_is_left(started)
    assert not (tmp_path / "stack").exists()
