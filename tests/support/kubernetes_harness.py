# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes backend on a real API server, where the test plays the kubelet.

Pods name a scheduler that does not exist, so that a cluster with real nodes leaves them alone too.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dispatcher.backends.kubernetes.backend import KubernetesBackend
from dispatcher.settings import WorkloadDelivery, load
from tests.support import services
from tests.support.backend_harness import BackendHarness, make_submission

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dispatcher.backends.base import Backend, Submission
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


def kubernetes_conf(namespace: str, template: Path, **values: str) -> Conf:
    """Return the configuration of a backend in one namespace of the cluster of ``KUBECONFIG``."""
    return Conf(
        {
            "namespace": namespace,
            "in_cluster": "False",
            "config_file": os.environ["KUBECONFIG"],
            "pod_template_file": str(template),
            **values,
        }
    )


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
        state = {"terminated": {"exitCode": exit_code, **terminated}}
        container = {
            "name": "base",
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": state,
        }
        phase = "Failed" if exit_code else "Succeeded"
        self.set_status(name, phase=phase, containerStatuses=[container])

    def delete(self, name: str) -> None:
        """Delete a pod at once."""
        self.api.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)


class KubernetesHarness(BackendHarness):
    """The backend on the API server of ``KUBECONFIG``, in a namespace of the test's own."""

    delivery = WorkloadDelivery.ARGS

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        from kubernetes.client import CoreV1Api

        self.namespace: str = request.getfixturevalue("kube_namespace")
        self._template = write_template(request.getfixturevalue("tmp_path") / "pod.yaml")
        self._settings = make_settings(deployment=self.namespace, workload_delivery=self.delivery)
        self._client = services.kubernetes_client()
        self.kubelet = Kubelet(CoreV1Api(self._client.__enter__()), self.namespace)

    def create(self) -> Backend:
        return KubernetesBackend(kubernetes_conf(self.namespace, self._template), self._settings)

    def create_unreachable(self) -> Backend:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            port = nobody.getsockname()[1]
        config = self._template.with_name("unreachable.yaml")
        config.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                    "current-context": "c",
                }
            )
        )
        conf = kubernetes_conf(self.namespace, self._template, config_file=str(config))
        return KubernetesBackend(conf, self._settings)

    def bad_submission(self) -> Submission:
        return make_submission(executor_config={"pod_override": "not a pod"})

    def count(self, token: str) -> int:
        return len([pod for pod in self.kubelet.pods(token) if not pod.metadata.deletion_timestamp])

    def end(self, submission: Submission, *, ok: bool) -> None:
        name = self.kubelet.name_of(submission.token)
        if ok:
            self.kubelet.end(name, 0, reason="Completed")
        else:
            self.kubelet.end(name, 137, reason="OOMKilled")

    def vanish(self, submission: Submission) -> None:
        self.kubelet.delete(self.kubelet.name_of(submission.token))

    def close(self) -> None:
        super().close()
        self._client.__exit__(None, None, None)


class KubernetesSecretHarness(KubernetesHarness):
    """The same, with workloads delivered by Secret."""

    delivery = WorkloadDelivery.SECRET
