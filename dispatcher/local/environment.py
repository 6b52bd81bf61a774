# SPDX-License-Identifier: Apache-2.0
"""The environment variables of a local stack: an isolated Airflow that knows its services.

There are two: workers get no database address and no signing secret, as befits workers.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dispatcher.example_dags
from dispatcher.example_dags.journal import GATE_VARIABLE, JOURNAL_VARIABLE, PLACE_VARIABLE
from dispatcher.local.login import USER
from dispatcher.local.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.local.services import Cluster, Database

EXECUTOR = "dispatcher.executor.HybridExecutor"
QUEUES = ("default", "callbacks", "standby")
"""What the stack's Celery worker consumes from the start; the example's sensor has a queue of its own."""

ROUTES = [
    {"match": {"kind": "callback", "callback": "*_on_kubernetes"}, "backend": "kubernetes"},
]
"""The stack's routing rules: callbacks of such a name run in pods."""

BYTECODE_VARIABLE = "PYTHONPYCACHEPREFIX"

_OTHER_AIRFLOW = ("AIRFLOW_", "_AIRFLOW_")


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a stack keeps everything it writes.

    :param root: a fresh temporary directory
    """

    root: Path

    @property
    def home(self) -> Path:
        """Airflow's home."""
        return self.root / "airflow"

    @property
    def component_logs(self) -> Path:
        """One log file for each component."""
        return self.root / "logs"

    @property
    def task_logs(self) -> Path:
        """What Airflow keeps of tasks and callbacks."""
        return self.root / "task-logs"

    @property
    def database(self) -> Path:
        """The SQLite metadata database."""
        return self.root / "metadata.db"

    @property
    def passwords(self) -> Path:
        """The passwords of the simple auth manager."""
        return self.root / "passwords.json"

    @property
    def kubeconfig(self) -> Path:
        """How to reach the embedded cluster."""
        return self.root / "kubeconfig.yaml"

    @property
    def pod_template(self) -> Path:
        """The pod template of the executor."""
        return self.root / "pod-template.yaml"

    @property
    def journal(self) -> Path:
        """What the bodies of tasks and callbacks noted."""
        return self.root / "journal.jsonl"

    @property
    def gate(self) -> Path:
        """The file for which the example's sensor waits."""
        return self.root / "gate"

    @property
    def bytecode(self) -> Path:
        """Compiled modules, where they may not be kept beside the sources."""
        return self.root / "bytecode"

    def create(self) -> None:
        """Make the directories."""
        for folder in (self.home, self.component_logs, self.task_logs):
            folder.mkdir()


def process_environment(inherited: Mapping[str, str], folder: Folder) -> dict[str, str]:
    """Return what every process of the stack inherits: no other Airflow, no proxy for the loopback address.

    :param inherited: our own environment
    :param folder: the stack's directory
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_OTHER_AIRFLOW) and name != "KUBECONFIG"
    }
    for name in ("no_proxy", "NO_PROXY"):
        kept[name] = ",".join(filter(None, (kept.get(name), HOST, "localhost")))
    kept["PYTHONUNBUFFERED"] = "1"
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Nothing is written beside the sources; but a dozen processes must not all compile Airflow anew.
        kept[BYTECODE_VARIABLE] = str(folder.bytecode)
    return kept


def everywhere(folder: Folder, api_url: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return what every component and every pod needs to know.

    :param folder: the stack's directory
    :param api_url: address of the API server, without a slash at the end
    :param extra: further settings
    """
    return {
        "AIRFLOW_HOME": str(folder.home),
        "AIRFLOW__CORE__DAGS_FOLDER": example_dags(),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{api_url}/execution/",
        "AIRFLOW__CORE__EXECUTOR": EXECUTOR,
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder.home / "plugins"),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder.task_logs),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        JOURNAL_VARIABLE: str(folder.journal),
        GATE_VARIABLE: str(folder.gate),
        **extra,
    }


def celery(broker_url: str) -> dict[str, str]:
    """Return what the scheduler and the Celery worker need to know of the broker.

    :param broker_url: address of a Redis database
    """
    return {
        "AIRFLOW__CELERY__BROKER_URL": broker_url,
        "AIRFLOW__CELERY__RESULT_BACKEND": broker_url,
        "AIRFLOW__CELERY__WORKER_CONCURRENCY": "4",
    }


def scheduler_side(folder: Folder, api_url: str, database: Database, cluster: Cluster) -> dict[str, str]:
    """Return what only the scheduler's side needs to know: database, secrets, cluster, routes, users.

    :param folder: the stack's directory
    :param api_url: address of the API server, without a slash at the end
    :param database: the metadata database
    :param cluster: the cluster, with the stack's own pod template
    """
    return {
        "AIRFLOW__API__BASE_URL": api_url,
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder.passwords),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.url,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": database.async_url,
        "AIRFLOW__DISPATCHER__ROUTES": json.dumps(ROUTES),
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(cluster.kubeconfig),
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": cluster.namespace,
        "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(cluster.pod_template),
    }


def in_place(backend: str) -> dict[str, str]:
    """Return what tells a worker, for the example's journal, of which backend it is.

    :param backend: ``celery`` or ``kubernetes``
    """
    return {PLACE_VARIABLE: backend}


def example_dags() -> str:
    """Return the directory of the example DAGs that are installed with this package."""
    return str(Path(dispatcher.example_dags.__file__).parent)


def pods(python: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what only pods need to know: which Python to run, and that they are pods.

    :param python: path of the interpreter that ``python`` is to be
    :param inherited: what every process of the stack inherits
    """
    path = os.pathsep.join((str(Path(python).parent), inherited.get("PATH", os.defpath)))
    kept = {name: value for name, value in inherited.items() if name == BYTECODE_VARIABLE}
    return {"PATH": path, **kept, **in_place("kubernetes")}
