# SPDX-License-Identifier: Apache-2.0
"""Pods that really run: what the executor and they need to know, and a look at them from outside."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.watch import Watch

from dispatcher.local.pod_template import write_pod_template
from tests.support.clusters import POD_TEMPLATE_VARIABLE
from tests.support.guard_host import SETTINGS

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

ROOT = Path(__file__).parents[2]

_KEPT = (
    "AIRFLOW_HOME",
    "AIRFLOW__CORE__DAGS_FOLDER",
    "AIRFLOW__CORE__EXECUTOR",
    "AIRFLOW__CORE__LOAD_EXAMPLES",
    "AIRFLOW__CORE__PLUGINS_FOLDER",
)
"""What pods get of this process's environment: no database and no secret."""


@dataclass
class History:
    """What happened to the pods of a namespace.

    :param created: names, in order
    :param deleted: names, in order
    """

    created: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


class Pods:
    """The pods of one namespace, whose containers see the files of this machine.

    :param client: a client of the cluster
    :param namespace: a namespace of the test's own
    :param folder: for the template, the marks and the gate
    :param server: URL of the execution API
    """

    def __init__(self, client: ApiClient, namespace: str, folder: Path, server: str) -> None:
        source = os.environ.get(POD_TEMPLATE_VARIABLE)
        if not source:
            pytest.skip(f"{POD_TEMPLATE_VARIABLE} names no pod template")
        self.namespace = namespace
        self._api = CoreV1Api(client)
        self._marks = folder / "marks"
        self._template = folder / "pod-template.yaml"
        write_pod_template(self._template, Path(source), self._environment(folder, server))
        self._version = self._api.list_namespaced_pod(namespace).metadata.resource_version

    def _environment(self, folder: Path, server: str) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in _KEPT},
            **SETTINGS,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": server,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "task-logs"),
            "GUARD_MARKS": str(self._marks),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": str(ROOT),
        }

    def executor_environment(self) -> dict[str, str]:
        """Return what an executor needs to know to make such pods."""
        return {
            "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": os.environ["KUBECONFIG"],
            "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
            "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": self.namespace,
            "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(self._template),
        }

    def names(self) -> list[str]:
        """Return the names of the pods that exist."""
        return [pod.metadata.name for pod in self._api.list_namespaced_pod(self.namespace).items]

    def manifest(self, token: str) -> Any:
        """Return the manifest of the one pod of a launch, as it was created."""
        pods = self._api.list_namespaced_pod(self.namespace).items
        (pod,) = [one for one in pods if one.metadata.name.endswith(token)]
        pod.metadata.uid = pod.metadata.resource_version = pod.metadata.creation_timestamp = None
        pod.metadata.managed_fields = None
        pod.spec.node_name = pod.status = None
        return pod

    def create(self, manifest: Any, name: str) -> None:
        """Create a pod that is like another one but for its name."""
        manifest.metadata.name = name
        self._api.create_namespaced_pod(self.namespace, manifest)

    def delete(self, name: str) -> None:
        """Delete a pod at once, as a person may."""
        self._api.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)

    def log_of(self, name: str) -> str:
        """Return what a pod has written so far; nothing if it has not started."""
        try:
            return str(self._api.read_namespaced_pod_log(name, self.namespace))
        except ApiException:
            return ""

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a pod, or None as long as it has not ended."""
        statuses = self._api.read_namespaced_pod(name, self.namespace).status.container_statuses
        ended = statuses[0].state.terminated if statuses else None
        return None if ended is None else int(ended.exit_code)

    def history(self) -> History:
        """Return what happened to all pods since this object was made."""
        history = History()
        changes = Watch().stream(
            self._api.list_namespaced_pod,
            self.namespace,
            resource_version=self._version,
            timeout_seconds=1,
        )
        for change in changes:
            name = change["object"].metadata.name
            if change["type"] == "ADDED":
                history.created.append(name)
            if change["type"] == "DELETED":
                history.deleted.append(name)
        return history

    def marks(self) -> list[str]:
        """Return the marks that workloads have left."""
        return self._marks.read_text().splitlines() if self._marks.exists() else []

    def open_gate(self) -> None:
        """Let the bodies that wait at the gate go on."""
        self._marks.with_name("gate").touch()
