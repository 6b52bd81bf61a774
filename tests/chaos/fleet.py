# SPDX-License-Identifier: Apache-2.0
"""The processes of the Airflow of a run: started, killed, started again, and all ended at the end."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import httpx

from dispatcher.local import components, environment, processes, readiness
from dispatcher.local.environment import Folder
from dispatcher.local.errors import ComponentDiedError
from dispatcher.local.login import new_login, write_passwords
from dispatcher.local.ports import HOST, free_port
from dispatcher.local.services import Cluster
from tests.chaos.airflow_settings import settings_of_run
from tests.chaos.bodies import PLACE_VARIABLE
from tests.chaos.clock import say
from tests.chaos.ground import write_pod_template

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dispatcher.local.interrupts import Interrupts
    from dispatcher.local.processes import ChildProcess
    from tests.chaos.ground import Ground

START_SECONDS = 180
END_SECONDS = 15
POLL_SECONDS = 0.25

SCHEDULERS = ("scheduler 1", "scheduler 2")
WORKERS = ("celery worker 1", "celery worker 2")

_HELD = re.compile(r"executor\.(queued_tasks|queued_callbacks|queued\[[^\]]*\]|running) \((\d+)\)")
_DUMP = "received, printing debug"


class Fleet:
    """The processes, each in a role of which one runs at a time.

    :param ground: what they run on
    :param interrupts: holds signals back while a process is started or all are ended
    """

    def __init__(self, ground: Ground, interrupts: Interrupts) -> None:
        self.login = new_login()
        self._interrupts = interrupts
        self._folder = Folder(ground.root)
        self._port = free_port()
        self._inherited = environment.process_environment(os.environ, self._folder)
        template = self._folder.pod_template
        cluster = Cluster(
            kubeconfig=ground.cluster.kubeconfig, namespace=ground.namespace, pod_template=template
        )
        everywhere = environment.everywhere(self._folder, self.api_url, {})
        celery = environment.celery(ground.broker.url)
        side = environment.scheduler_side(self._folder, self.api_url, ground.database, cluster)
        own = settings_of_run(self.notes)
        self._workers = {**everywhere, **celery, **own}
        self._airflow = {**everywhere, **celery, **side, **own}
        self._pods = {**everywhere, **own, **environment.pods(sys.executable, self._inherited)}
        self._source_template = ground.cluster.pod_template
        self._running: dict[str, ChildProcess] = {}
        self._started = 0
        self._past: list[ChildProcess] = []
        self.killed: dict[str, float] = {}

    @property
    def api_url(self) -> str:
        """Address of the API server, without a slash at the end."""
        return f"http://{HOST}:{self._port}"

    @property
    def notes(self) -> Path:
        """The file that all bodies append to."""
        return self._folder.root / "notes.jsonl"

    @property
    def logs(self) -> Path:
        """Where the processes log."""
        return self._folder.component_logs

    def api_server_answers(self) -> bool:
        """Say whether the API server answers now."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.api_url}/api/v2/version", timeout=1).is_success
        return False

    def migrate(self) -> None:
        """Make the folders, and create the tables.

        :raises ComponentDiedError: that failed
        """
        self._folder.create()
        write_passwords(self._folder.passwords, self.login)
        assert self._source_template is not None
        write_pod_template(self._folder.pod_template, self._source_template, self._pods)
        migration = self._spawn(components.MIGRATION, components.migration(), self._airflow)
        self._wait(migration, lambda: migration.exit_code is not None)
        if migration.exit_code:
            raise ComponentDiedError(f"the migration failed:\n{migration.tail()}")
        del self._running[components.MIGRATION]

    def start_all(self) -> None:
        """Start every component and wait until all are ready.

        :raises ComponentDiedError: one of them ended, or did not get ready in time
        """
        roles = (components.API_SERVER, components.DAG_PROCESSOR, *SCHEDULERS, *WORKERS)
        children = {role: self.start(role) for role in roles}
        api_server = children[components.API_SERVER]
        self._wait(api_server, partial(readiness.answers, self.api_url))
        beats = partial(readiness.heart_beats, self.api_url)
        self._wait(children[components.DAG_PROCESSOR], partial(beats, "dag_processor"))
        for role in SCHEDULERS:
            self._wait(children[role], partial(beats, "scheduler"))
        for role in WORKERS:
            self._wait(children[role], partial(_says_ready, children[role]))

    def start(self, role: str) -> ChildProcess:
        """Start what has this role, and do not wait for it."""
        self._started += 1
        if role in WORKERS:
            place = f"worker {self._started}"
            command = [*components.worker(), "-n", f"chaos-{self._started}@%h"]
            return self._spawn(role, command, {**self._workers, PLACE_VARIABLE: place}, place)
        commands = {
            components.API_SERVER: partial(components.api_server, self._port),
            components.DAG_PROCESSOR: components.dag_processor,
            **dict.fromkeys(SCHEDULERS, components.scheduler),
        }
        return self._spawn(role, commands[role](), self._airflow)

    def running(self, role: str) -> ChildProcess | None:
        """Return the process of this role, if it runs."""
        child = self._running.get(role)
        return child if child is not None and child.exit_code is None else None

    def kill(self, role: str) -> None:
        """Kill the process of a role with everything it started, as if its machine had gone."""
        child = self._running.pop(role)
        self._mark_killed(child)
        processes.kill([child])

    def kill_parent(self, role: str) -> None:
        """Kill the process of a role and leave what it started to itself, until the role is filled again."""
        child = self._running.pop(role)
        os.kill(child.popen.pid, signal.SIGKILL)
        self._past.append(child)

    def bury(self) -> None:
        """Kill what killed parents left."""
        for child in self._past:
            self._mark_killed(child)
        processes.kill(self._past)
        self._past.clear()

    def ask_to_end(self, role: str) -> None:
        """Send SIGTERM and do not wait; ``start`` is for when it has ended."""
        self._running[role].popen.terminate()

    def stall(self, role: str) -> None:
        """Let the process of a role stand still."""
        os.kill(self._running[role].popen.pid, signal.SIGSTOP)

    def go_on(self, role: str) -> None:
        """Let the process of a role go on."""
        if child := self.running(role):
            os.kill(child.popen.pid, signal.SIGCONT)

    def ended_by_themselves(self) -> list[tuple[str, ChildProcess]]:
        """Return the roles whose process ended, and forget these processes."""
        ended = [(role, child) for role, child in self._running.items() if child.exit_code is not None]
        for role, child in ended:
            del self._running[role]
            processes.kill([child])
        return ended

    def slots_held(self, seconds: float) -> dict[str, int | None]:
        """Ask each scheduler how many workloads its executor holds.

        :param seconds: how long they may take to answer; None stands for no answer
        """
        asked = {role: child for role in SCHEDULERS if (child := self.running(role))}
        heard = {role: len(child.output()) for role, child in asked.items()}
        for child in asked.values():
            os.kill(child.popen.pid, signal.SIGUSR2)
        until = time.monotonic() + seconds
        held: dict[str, int | None] = dict.fromkeys(SCHEDULERS)
        while None in held.values() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            for role, child in asked.items():
                held[role] = slots_in_dump(child.output()[heard[role] :])
        return held

    def stop(self) -> None:
        """End every process that was started, whatever state the run is in."""
        with self._interrupts.held():
            children = [*self._running.values(), *self._past]
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child.popen.pid, signal.SIGCONT)
            last = [child for child in children if child.name == components.API_SERVER]
            processes.stop([child for child in children if child not in last], END_SECONDS)
            processes.stop(last, END_SECONDS)
            self._running.clear()
            self._past.clear()

    def _mark_killed(self, child: ChildProcess) -> None:
        self.killed.setdefault(child.name, time.time())

    def _spawn(self, role: str, command: list[str], env: dict[str, str], name: str = "") -> ChildProcess:
        name = name or role
        log = self.logs / f"{name.replace(' ', '-')}.log"
        with self._interrupts.held():
            child = processes.start(
                name, command, env={**self._inherited, **env}, cwd=self._folder.root, log=log
            )
            self._running[role] = child
        return child

    def _wait(self, child: ChildProcess, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + START_SECONDS
        while not ready():
            if child.exit_code or time.monotonic() > until:
                raise ComponentDiedError(f"{child.name} did not get ready; its log ends:\n{child.tail()}")
            time.sleep(POLL_SECONDS)
        say(f"{child.name} ready")


def _says_ready(worker: ChildProcess) -> bool:
    return " ready." in worker.output()


def slots_in_dump(output: str) -> int | None:
    """Return what the last complete dump of an executor says that it holds."""
    _, found, dump = output.rpartition(_DUMP)
    counts = _HELD.findall(dump)
    # The last that it names, whatever the version of Airflow.
    complete = found and counts and counts[-1][0] == "running"
    return sum(int(count) for _, count in counts) if complete else None
