# SPDX-License-Identifier: Apache-2.0
"""A whole Airflow with this executor, as child processes, with all state in one temporary directory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher.local import components, environment, processes, readiness
from dispatcher.local.environment import Folder
from dispatcher.local.errors import ComponentDiedError, LocalModeError
from dispatcher.local.login import new_login, write_passwords
from dispatcher.local.pod_template import write_pod_template
from dispatcher.local.ports import HOST, free_port
from dispatcher.local.services import Cluster, Database, Services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dispatcher.local.interrupts import Interrupts
    from dispatcher.local.processes import ChildProcess
    from dispatcher.local.progress import Progress

START_SECONDS = 120
STOP_SECONDS = 6
SERVED_STOP_SECONDS = 3
POLL_SECONDS = 0.25
EMBEDDED_NAMESPACE = "default"


class Stack:
    """The processes of one local Airflow.

    :param folder: where it keeps everything it writes
    :param services: what it runs on
    :param progress: where it says what it does
    :param interrupts: holds signals back while a process is started or all are ended
    :param settings: further environment variables for every component and pod
    """

    def __init__(
        self,
        folder: Folder,
        services: Services,
        progress: Progress,
        interrupts: Interrupts,
        settings: Mapping[str, str],
    ) -> None:
        self.login = new_login()
        self._folder = folder
        self._services = services
        self._progress = progress
        self._interrupts = interrupts
        self._port = free_port()
        self._inherited = environment.process_environment(os.environ, folder)
        self._common = environment.everywhere(folder, self.api_url, settings)
        self._celery: dict[str, str] = {}
        self._scheduler_side = environment.scheduler_side(
            folder, self.api_url, self._database(), self._cluster()
        )
        self._children: list[ChildProcess] = []

    @property
    def api_url(self) -> str:
        """Address of the API server and the UI, without a slash at the end."""
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        """Start every component and wait until all are ready.

        :raises ComponentDiedError: one of them ended, or did not get ready in time
        """
        self._folder.create()
        write_passwords(self._folder.passwords, self.login)
        self._write_pod_template()
        migration = self._start(components.MIGRATION, components.migration())
        self._celery = environment.celery(self._services.broker_url or self._start_broker())
        if self._services.cluster is None:
            self._start_cluster()
        self.wait_for_end(migration, START_SECONDS)
        self._progress.say("database migrated")
        self._start_airflow()

    def open_gate(self) -> None:
        """Let the example's sensor go on; otherwise it waits for the tour to do so."""
        self._folder.gate.touch()

    def run_tour(self, seconds: float) -> int:
        """Run the tour against this stack and return its exit code.

        :param seconds: how long it may take
        :raises ComponentDiedError: a component ended meanwhile
        """
        command = components.tour(self._log_of(components.WORKER), self._progress.start)
        quiet = {"AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
        tour = self._start(components.TOUR, command, own={**self._airflow_side(), **quiet}, logged=False)
        return self.wait_for_end(tour, seconds, may_fail=True)

    def wait_for_end(self, child: ChildProcess, seconds: float, *, may_fail: bool = False) -> int:
        """Wait until a child that ends by itself has ended, and return its exit code.

        :param child: which one
        :param seconds: how long it may take
        :param may_fail: whether an exit code other than 0 is a result and no error
        :raises ComponentDiedError: it failed, took too long, or a component ended meanwhile
        """
        deadline = time.monotonic() + seconds
        while (code := child.exit_code) is None:
            if time.monotonic() > deadline:
                raise ComponentDiedError(f"{child.name} took longer than {seconds:.0f} s\n{child.tail()}")
            self.check(but=child)
            time.sleep(POLL_SECONDS)
        self._children.remove(child)
        processes.stop([child], 0)
        if code and not may_fail:
            raise ComponentDiedError(_epitaph(child))
        return code

    def check(self, but: ChildProcess | None = None) -> None:
        """Make sure that every component runs.

        :param but: a child that may have ended
        :raises ComponentDiedError: names the one that does not, with the end of its log
        """
        for child in self._children:
            if child is not but and child.exit_code is not None:
                raise ComponentDiedError(_epitaph(child))

    def stop(self) -> None:
        """End every process that was started, whatever state the stack is in."""
        with self._interrupts.held():
            users = [child for child in self._children if child.name not in components.SERVED_TO_THE_LAST]
            processes.stop(users, STOP_SECONDS)
            processes.stop([child for child in self._children if child not in users], SERVED_STOP_SECONDS)
            self._children.clear()

    def _start_airflow(self) -> None:
        api_server = self._start(components.API_SERVER, components.api_server(self._port))
        children = {
            "dag_processor": self._start(components.DAG_PROCESSOR, components.dag_processor()),
            "scheduler": self._start(components.SCHEDULER, components.scheduler()),
            "triggerer": self._start(components.TRIGGERER, components.triggerer()),
        }
        worker = self._start(components.WORKER, components.worker(), own=self._worker_side())
        self._wait_until_ready(api_server, partial(readiness.answers, self.api_url))
        for component, child in children.items():
            self._wait_until_ready(child, partial(readiness.heart_beats, self.api_url, component))
        broker_url = self._celery["AIRFLOW__CELERY__BROKER_URL"]
        self._wait_until_ready(worker, partial(readiness.worker_answers, broker_url))

    def _airflow_side(self) -> dict[str, str]:
        return {**self._common, **self._celery, **self._scheduler_side}

    def _worker_side(self) -> dict[str, str]:
        return {**self._common, **self._celery, **environment.in_place("celery")}

    def _start_broker(self) -> str:
        broker = self._start(components.BROKER, components.broker(), own={})
        self._wait_until_ready(broker, lambda: readiness.address_in_ready_line(broker) is not None)
        address = readiness.address_in_ready_line(broker)
        if address is None:
            raise LocalModeError("the embedded broker did not say where it listens")
        return address

    def _start_cluster(self) -> None:
        cluster = self._start(components.CLUSTER, components.cluster(self._folder.kubeconfig), own={})
        self._wait_until_ready(cluster, lambda: readiness.address_in_ready_line(cluster) is not None)

    def _start(
        self, name: str, command: list[str], *, own: Mapping[str, str] | None = None, logged: bool = True
    ) -> ChildProcess:
        """Start one component; without an environment of its own it belongs to the scheduler's side."""
        own = self._airflow_side() if own is None else own
        log = self._log_of(name) if logged else None
        with self._interrupts.held():
            child = processes.start(
                name,
                command,
                env={**self._inherited, **own},
                cwd=self._folder.root,
                log=log,
            )
            self._children.append(child)
        return child

    def _log_of(self, name: str) -> Path:
        return self._folder.component_logs / f"{name.replace(' ', '-')}.log"

    def _wait_until_ready(self, child: ChildProcess, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ComponentDiedError(
                    f"{child.name} was not ready after {START_SECONDS} s\n{child.tail()}"
                )
            time.sleep(POLL_SECONDS)
        self._progress.say(f"{child.name} ready")

    def _database(self) -> Database:
        path = self._folder.database
        embedded = Database(url=f"sqlite:///{path}", async_url=f"sqlite+aiosqlite:///{path}")
        return self._services.database or embedded

    def _cluster(self) -> Cluster:
        given = self._services.cluster
        return Cluster(
            kubeconfig=given.kubeconfig if given else self._folder.kubeconfig,
            namespace=given.namespace if given else EMBEDDED_NAMESPACE,
            pod_template=self._folder.pod_template,
        )

    def _write_pod_template(self) -> None:
        given = self._services.cluster
        env = {**self._common, **environment.pods(sys.executable, self._inherited)}
        write_pod_template(self._folder.pod_template, given.pod_template if given else None, env)


@contextmanager
def running(
    progress: Progress,
    interrupts: Interrupts,
    services: Services | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Stack]:
    """Yield a running stack in a fresh temporary directory; at the end, end all it started.

    The directory is removed, unless the local mode failed: then its logs are worth reading.

    :param progress: where to say what happens
    :param interrupts: the signals of this process
    :param services: what to run on; None for the embedded services alone
    :param settings: further environment variables for every component and pod
    :raises LocalModeError: the stack did not start, or what was done with it failed
    """
    root = Path(tempfile.mkdtemp(prefix="dispatcher-local-"))
    stack = Stack(Folder(root), services or Services(), progress, interrupts, settings or {})
    keep = False
    try:
        progress.say(f"starting in {root}")
        stack.start()
        yield stack
    except LocalModeError:
        keep = True
        raise
    finally:
        progress.say("ending every process")
        stack.stop()
        if keep:
            progress.say(f"the logs are kept in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def _epitaph(child: ChildProcess) -> str:
    return f"{child.name} ended with exit code {child.exit_code}; its log ends:\n{child.tail()}"
