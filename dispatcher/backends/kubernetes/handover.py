# SPDX-License-Identifier: Apache-2.0
"""Pods in the hands of the stock KubernetesExecutor: which labels let it take them over.

It selects pods by ``kubernetes_executor`` and, in ``airflow-worker``, by the job id of the scheduler that
queued the task instance; then it knows the task by annotations that our pods have too. Our own labels stay,
so that a dispatcher that comes back knows the pods again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatcher.backends.kubernetes.client import open_cluster
from dispatcher.backends.kubernetes.endings import classify_pod, is_terminating
from dispatcher.backends.kubernetes.identity import (
    STOCK_EXECUTOR,
    WORKER,
    Owner,
    PodIdentity,
    label_value,
    read_identity,
    selector,
)
from dispatcher.backends.kubernetes.options import load_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.backends.kubernetes.client import Cluster
    from dispatcher.settings import Settings

TASK_INSTANCE = "task_instance_id"
"""Annotation from which the stock executor of Airflow 3.4 knows the task instance."""

REQUEST_SECONDS = 10.0
"""Time-out of one call where ``[kubernetes_executor]`` names none."""


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod of ours.

    :param usable: it waits or runs, and nobody has asked for its deletion
    :param succeeded: it has ended well
    :param labels: as they are
    """

    identity: PodIdentity
    usable: bool
    succeeded: bool
    labels: Mapping[str, str]


def adopting_labels(job_id: str) -> dict[str, str]:
    """Return the labels with which the next stock scheduler adopts the pod of a live task instance.

    :param job_id: of the scheduler that the task instance names
    """
    return {STOCK_EXECUTOR: "True", WORKER: label_value(job_id)}


TIDYING_LABELS = {STOCK_EXECUTOR: "True"}
"""Labels with which a stock scheduler removes a pod that succeeded."""


class PodHandover:
    """Finds the pods of one team, and labels them; touches no service before it is asked to.

    :param conf: Airflow's configuration, team-aware for a team
    :param settings: ``[dispatcher]``
    :param team_name: whose pods; None for those of no team
    :raises ConfigurationError: ``[kubernetes_executor]`` cannot be used
    :raises BackendError: there is no configuration of a cluster
    """

    def __init__(self, conf: Any, settings: Settings, team_name: str | None = None) -> None:
        self._options = load_options(conf)
        self._selector = selector(Owner("", settings.deployment, team_name))
        self._cluster: Cluster = open_cluster(
            conf, self._options, connections=1, request_seconds=REQUEST_SECONDS
        )

    def pods(self) -> list[FoundPod]:
        """Return the pods that are not done with.

        :raises BackendError: the API server does not answer, or does not let us list
        """
        return [
            found
            for scope in self._options.scopes
            for pods, _version in self._cluster.pod_pages(scope, self._selector)
            for pod in pods
            if (found := _read(pod)) is not None
        ]

    def label(self, pod: FoundPod, labels: Mapping[str, str], task_instance_id: str | None = None) -> bool:
        """Set labels of a pod that lacks some; return whether it did.

        :param pod: which one; if it is gone by now, that is no error
        :param labels: what it is to have
        :param task_instance_id: what the task instance's annotation is to say
        :raises BackendError: it is not certain that it was done
        """
        if labels.items() <= pod.labels.items():
            return False
        annotations = {} if task_instance_id is None else {TASK_INSTANCE: task_instance_id}
        self._cluster.label_pod(pod.identity.namespace, pod.identity.name, labels, annotations)
        return True

    def close(self) -> None:
        """Close connections."""
        self._cluster.close()


def _read(pod: Mapping[str, Any]) -> FoundPod | None:
    identity = read_identity(pod)
    if identity is None:
        return None
    ending = classify_pod(pod)
    return FoundPod(
        identity=identity,
        usable=ending is None and not is_terminating(pod),
        succeeded=ending is not None and ending.ok,
        labels=(pod.get("metadata") or {}).get("labels") or {},
    )
