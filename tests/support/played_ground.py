# SPDX-License-Identifier: Apache-2.0
"""Schedulers, Celery workers and pods on real services whose bodies are played; see ``players``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support import services
from tests.support.kubernetes_field import Kubelet, write_template
from tests.support.nursery import Nursery
from tests.support.played_pods import PlayedPods
from tests.support.players import GATES_VARIABLE, NOTES_VARIABLE, SERVER_VARIABLE, Player

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.api_server import ApiServer

HEALTH_CHECK_SECONDS = 4
"""After how long without a heartbeat a scheduler is declared dead."""

ORPHAN_CHECK_SECONDS = 2
"""How often schedulers look for dead ones."""

QUICK = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": str(HEALTH_CHECK_SECONDS),
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": str(ORPHAN_CHECK_SECONDS),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "8",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
    "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "5",
    "AIRFLOW__CELERY__WORKER_CONCURRENCY": "6",
}
"""Settings with which what has died is found in seconds."""


class PlayedGround:
    """Everything but the schedulers and workers; use it as a context manager.

    :param server: an API server with the plugin
    :param folder: for logs, notes and templates
    :param settings: further environment variables of all that is forked
    """

    def __init__(self, server: ApiServer, folder: Path, settings: Mapping[str, str]) -> None:
        self._server = server
        self._folder = folder
        self._settings = settings
        self._stack = ExitStack()
        self.notes = folder / "notes"

    def __enter__(self) -> Self:
        from kubernetes.client import CoreV1Api

        broker = self._stack.enter_context(services.claimed_redis_database())
        namespace = self._stack.enter_context(services.own_namespace())
        client = self._stack.enter_context(services.kubernetes_client())
        self.kubelet = Kubelet(CoreV1Api(client), namespace)
        cluster = {
            "NAMESPACE": namespace,
            "IN_CLUSTER": "False",
            "CONFIG_FILE": os.environ["KUBECONFIG"],
            "POD_TEMPLATE_FILE": str(write_template(self._folder / "pod.yaml")),
        }
        self.env = {
            **os.environ,
            **QUICK,
            **{f"AIRFLOW__KUBERNETES_EXECUTOR__{key}": value for key, value in cluster.items()},
            "AIRFLOW__DISPATCHER__DEPLOYMENT": namespace,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self._server.url}/execution/",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": broker,
            SERVER_VARIABLE: self._server.url,
            NOTES_VARIABLE: str(self.notes),
            **self._settings,
        }
        self.nursery = self._stack.enter_context(Nursery(self._folder, self.env))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def start_pods(self, threads: int = 6, may_start: Callable[[], bool] = lambda: True) -> PlayedPods:
        """Let pods run from now on.

        :param threads: how many at once
        :param may_start: asked before each one is started
        """
        gates = self.env.get(GATES_VARIABLE)
        player = Player(self.env[SERVER_VARIABLE], self.notes, Path(gates) if gates else None)
        self._stack.callback(player.close)
        return self._stack.enter_context(PlayedPods(self.kubelet, player, threads, may_start))
