# SPDX-License-Identifier: Apache-2.0
"""A namespace of a real API server, where tests play the kubelet and open Kubernetes backends.

Pods name a scheduler that does not exist, so that a cluster with real nodes leaves them alone too.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from dispatcher.backends.kubernetes.backend import KubernetesBackend
from dispatcher.settings import load
from tests.support.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dispatcher.settings import Settings

IDLE_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "placeholder"},
    "spec": {
        "schedulerName": "nobody",
        "containers": [{"name": "base", "image": "none.invalid/none:none"}],
    },
}
"""A pod template: nobody runs its pods."""


class Conf:
    """Airflow's configuration with other values in ``[kubernetes_executor]``, as an executor's own has."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def get(self, section: str, key: str, **kwargs: Any) -> str | None:
        from airflow.configuration import conf

        if section == "kubernetes_executor" and key in self._values:
            return self._values[key]
        return conf.get(section, key, **kwargs)

    def getboolean(self, section: str, key: str, **kwargs: Any) -> bool:
        return str(self.get(section, key, **kwargs)).lower() in ("true", "t", "1")

    def getint(self, section: str, key: str, **kwargs: Any) -> int:
        return int(self.get(section, key, **kwargs) or 0)

    def getsection(self, section: str, **kwargs: Any) -> Any:
        from airflow.configuration import conf

        own = self._values if section == "kubernetes_executor" else {}
        return {**(conf.getsection(section, **kwargs) or {}), **own}

    def getjson(self, section: str, key: str, **kwargs: Any) -> Any:
        import json

        text = self.get(section, key, fallback="")
        return json.loads(text) if text else kwargs.get("fallback")


def make_settings(**changes: Any) -> Settings:
    """Return the default settings with some changed."""
    from airflow.configuration import conf

    return replace(load(conf), **changes)


def write_template(path: Path, **spec: Any) -> Path:
    """Write a pod template whose pods nobody runs.

    :param spec: fields of the pod's spec
    """
    pod = {**IDLE_POD, "spec": {**IDLE_POD["spec"], **spec}}
    path.write_text(yaml.safe_dump(pod), encoding="utf-8")
    return path


def container_status(name: str = "base", **state: Any) -> dict[str, Any]:
    """Return what a kubelet says of one container.

    :param state: ``waiting``, ``running`` or ``terminated``
    """
    return {
        "name": name,
        "image": "none",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }


class Kubelet:
    """Says of pods what a kubelet would say, in one namespace.

    :param api: a client of the cluster
    """

    def __init__(self, api: Any, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def pods(self, token: str | None = None) -> list[Any]:
        """Return the pods of a token, or all."""
        pods = self.api.list_namespaced_pod(self.namespace).items
        if token is None:
            return pods
        return [pod for pod in pods if token in pod.metadata.name]

    def name_of(self, token: str) -> str:
        """Return the name of a token's one pod."""
        (pod,) = self.pods(token)
        return pod.metadata.name

    def set_status(self, name: str, **status: Any) -> None:
        """Write a pod's status."""
        self.api.patch_namespaced_pod_status(name, self.namespace, {"status": status})

    def end(self, name: str, exit_code: int, **terminated: Any) -> None:
        """Let the container ``base`` of a pod end."""
        container = container_status(terminated={"exitCode": exit_code, **terminated})
        phase = "Failed" if exit_code else "Succeeded"
        self.set_status(name, phase=phase, containerStatuses=[container])

    def delete(self, name: str) -> None:
        """Delete a pod at once."""
        self.api.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)


class KubernetesField:
    """A namespace, a kubelet played by the test, and the backends and proxies that were opened there.

    :param namespace: a namespace of the test's own
    :param directory: for templates and kubeconfig files
    :param kubeconfig: of the cluster; None means the one of ``KUBECONFIG``
    """

    def __init__(self, namespace: str, directory: Path, kubeconfig: Path | None = None) -> None:
        from kubernetes.client import CoreV1Api
        from kubernetes.config import new_client_from_config

        self.namespace = namespace
        self.directory = directory
        self.kubeconfig = str(kubeconfig or os.environ["KUBECONFIG"])
        self.template = write_template(directory / "pod.yaml")
        # The first import takes seconds, which tests that look at the clock would count.
        importlib.import_module("dispatcher.backends.kubernetes.access")
        self._client = new_client_from_config(self.kubeconfig)
        self.api = CoreV1Api(self._client)
        self.kubelet = Kubelet(self.api, namespace)
        self._backends: list[KubernetesBackend] = []
        self._proxies: list[FaultProxy] = []

    def backend(
        self,
        *,
        through: FaultProxy | None = None,
        job: str | None = "1",
        settings: Mapping[str, Any] | None = None,
        conf: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> KubernetesBackend:
        """Open a backend in this namespace.

        :param through: a proxy to talk through
        :param job: the scheduler job id; None to leave it unstarted
        :param settings: changed settings
        :param conf: changed keys of ``[kubernetes_executor]``
        :param arguments: of the constructor
        """
        values = {
            "namespace": self.namespace,
            "in_cluster": "False",
            "config_file": through.kubeconfig if through else self.kubeconfig,
            "pod_template_file": str(self.template),
            **(conf or {}),
        }
        chosen = make_settings(**{"deployment": self.namespace, **(settings or {})})
        backend = KubernetesBackend(Conf(values), chosen, **arguments)
        self._backends.append(backend)
        if job is not None:
            backend.start(job)
        return backend

    def proxy(self, as_user: str | None = None) -> FaultProxy:
        """Open a proxy to the cluster.

        :param as_user: impersonate this user, for whom the cluster has no role
        """
        proxy = FaultProxy(self._client, self.directory / f"proxy-{len(self._proxies)}.yaml", as_user)
        self._proxies.append(proxy)
        proxy.start()
        return proxy

    def close(self) -> None:
        """Stop everything that was opened."""
        for backend in self._backends:
            backend.stop()
        for proxy in self._proxies:
            proxy.stop()
        self._client.rest_client.pool_manager.clear()
