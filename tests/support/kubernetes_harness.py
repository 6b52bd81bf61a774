# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes backend under the contract suite, where the test plays the kubelet."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

from dispatcher.settings import WorkloadDelivery
from tests.support.backend_harness import BackendHarness, make_submission
from tests.support.fault_proxy import kubeconfig_of
from tests.support.kubernetes_field import KubernetesField

if TYPE_CHECKING:
    import pytest

    from dispatcher.backends.base import Backend, Submission


class KubernetesHarness(BackendHarness):
    """The backend on the API server of ``KUBECONFIG``, in a namespace of the test's own."""

    names_strays = True
    delivery = WorkloadDelivery.ARGS

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self.field = self._open_field()

    def _open_field(self) -> KubernetesField:
        return KubernetesField(
            self.request.getfixturevalue("kube_namespace"), self.request.getfixturevalue("tmp_path")
        )

    def create(self) -> Backend:
        return self.field.backend(job=None, settings={"workload_delivery": self.delivery})

    def create_unreachable(self) -> Backend:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            port = nobody.getsockname()[1]
        config = self.field.directory / "unreachable.yaml"
        config.write_text(kubeconfig_of(f"http://127.0.0.1:{port}"), encoding="utf-8")
        return self.field.backend(job=None, conf={"config_file": str(config)})

    def bad_submission(self) -> Submission:
        return make_submission(executor_config={"pod_override": "not a pod"})

    def count(self, token: str) -> int:
        return len([pod for pod in self.field.kubelet.pods(token) if not pod.metadata.deletion_timestamp])

    def end(self, submission: Submission, *, ok: bool) -> None:
        name = self.field.kubelet.name_of(submission.token)
        if ok:
            self.field.kubelet.end(name, 0, reason="Completed")
        else:
            self.field.kubelet.end(name, 137, reason="OOMKilled")

    def vanish(self, submission: Submission) -> None:
        self.field.kubelet.delete(self.field.kubelet.name_of(submission.token))

    def close(self) -> None:
        super().close()
        self.field.close()


class KubernetesSecretHarness(KubernetesHarness):
    """The same, with workloads delivered by Secret."""

    delivery = WorkloadDelivery.SECRET


class EmbeddedKubernetesHarness(KubernetesHarness):
    """The backend on the embedded cluster."""

    def _open_field(self) -> KubernetesField:
        cluster = self.request.getfixturevalue("clusters")("embedded")
        namespace = f"backend-{secrets.token_hex(4)}"
        cluster.api.create_namespace({"metadata": {"name": namespace}})
        self.request.addfinalizer(lambda: cluster.api.delete_namespace(namespace))
        directory = self.request.getfixturevalue("tmp_path")
        kubeconfig = directory / "kubeconfig.yaml"
        token = cluster.http.headers["Authorization"].removeprefix("Bearer ")
        kubeconfig.write_text(kubeconfig_of(str(cluster.http.base_url).rstrip("/"), token), encoding="utf-8")
        return KubernetesField(namespace, directory, kubeconfig)
