# SPDX-License-Identifier: Apache-2.0
"""Pods, from outside: how the pod of a launch ends, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.providers.cncf.kubernetes.kube_client import get_kube_client
from kubernetes.client.exceptions import ApiException
from kubernetes.watch import Watch

from dispatcher.local.errors import LocalModeError

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN_LABEL = "airflow-launch-token"
POD_SECONDS = 120


@dataclass(frozen=True, slots=True)
class EndedPod:
    """A pod that ended.

    :param log: everything that it wrote
    """

    exit_code: int
    log: str


class PodWatcher:
    """Watches the pods of one launch from now on.

    It must be made before the pod is: the executor removes pods that ended, and with them their logs.

    :param namespace: where to look
    :param token: the launch token
    """

    def __init__(self, namespace: str, token: str) -> None:
        self._api = get_kube_client(
            in_cluster=False, config_file=conf.get_mandatory_value("kubernetes_executor", "config_file")
        )
        self._namespace = namespace
        self._selector = f"{TOKEN_LABEL}={token}"
        listed = self._api.list_namespaced_pod(namespace, label_selector=self._selector)
        self._version = listed.metadata.resource_version

    def wait_for_end(self) -> EndedPod:
        """Wait until one pod ended and return how.

        :raises LocalModeError: none did in time
        """
        log: str | None = None
        for pod in self._changes():
            state = pod.status.container_statuses[0].state if pod.status.container_statuses else None
            if log is None and state is not None and (state.running or state.terminated):
                log = self._follow_log(pod.metadata.name)
            if state is not None and state.terminated:
                return EndedPod(state.terminated.exit_code, log or "")
        raise LocalModeError(f"no pod with the label {self._selector} ended within {POD_SECONDS} s")

    def _changes(self) -> Iterator[Any]:
        stream = Watch().stream(
            self._api.list_namespaced_pod,
            self._namespace,
            label_selector=self._selector,
            resource_version=self._version,
            timeout_seconds=POD_SECONDS,
        )
        return (event["object"] for event in stream)

    def _follow_log(self, name: str) -> str:
        try:
            answer = self._api.read_namespaced_pod_log(
                name, self._namespace, follow=True, _preload_content=False, _request_timeout=POD_SECONDS
            )
        except ApiException as exc:
            raise LocalModeError(f"the log of pod {name} cannot be read: HTTP {exc.status}") from exc
        return str(answer.read().decode(errors="replace"))


def pods_left(namespace: str) -> list[str]:
    """Return the pods in a namespace whose removal nobody has asked for, each with its phase.

    How long a node takes over a removal is the cluster's affair.
    """
    api = get_kube_client(
        in_cluster=False, config_file=conf.get_mandatory_value("kubernetes_executor", "config_file")
    )
    return sorted(
        f"{pod.metadata.name} ({pod.status.phase})"
        for pod in api.list_namespaced_pod(namespace).items
        if pod.metadata.deletion_timestamp is None
    )
