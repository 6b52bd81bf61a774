# SPDX-License-Identifier: Apache-2.0
"""How a pod says what it is: its name, labels and annotations.

Labels are for selecting; a value that Kubernetes does not allow is shortened there. Identity is read from
annotations alone, which hold exact values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dispatcher.domain.workload import WorkloadKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.backends.base import Submission

EXECUTOR = "airflow-executor"
EXECUTOR_VALUE = "hybrid-dispatcher"
DEPLOYMENT = "airflow-deployment"
WORKER = "airflow-worker"
TEAM = "airflow-team"
WORKLOAD_TYPE = "airflow-workload-type"
LAUNCH_TOKEN = "airflow-launch-token"
CONNECTION_TEST = "airflow-connection-test"
DONE = "airflow-launch-done"
"""Label of pods that are kept after their end: nobody watches them any more."""

STOCK_EXECUTOR = "kubernetes_executor"
"""Label by which the stock KubernetesExecutor adopts pods; ours never carry it."""

CACHED_VALUES = 4096
"""How many names and label values are remembered: those of one DAG recur, and take longest of a pod."""

_WORKER_PREFIX = "hybrid-"
_NAME_LENGTH = 63
_SLUG_LENGTH = 26
_KINDS: Mapping[Any, WorkloadKind] = {kind.value: kind for kind in WorkloadKind}


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose pods they are.

    :param scheduler_job_id: the scheduler that creates them
    :param deployment: ``[dispatcher] deployment``
    :param team_name: the executor's team, if it has one
    """

    scheduler_job_id: str
    deployment: str
    team_name: str | None = None


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Which artefact a pod is.

    :param token: the launch token, or the UUID of a connection test
    :param namespace: where it is
    :param name: of the pod
    :param uid: of this one pod; another pod of the same name has another
    """

    token: str
    kind: WorkloadKind
    namespace: str
    name: str
    uid: str

    @property
    def external_id(self) -> str:
        """The pod as the ledger names it."""
        return f"{self.namespace}/{self.name}"


def split_external_id(external_id: str) -> tuple[str, str]:
    """Return namespace and name of a pod as the ledger names it."""
    namespace, _, name = external_id.partition("/")
    return namespace, name


def pod_name(submission: Submission) -> str:
    """Return the one name of an artefact's pod, at most 63 characters long.

    :param submission: the artefact
    """
    if submission.kind is WorkloadKind.TEST_CONNECTION:
        return f"test-connection-{submission.token}"[:_NAME_LENGTH]
    return f"{_slug(submission)}-{submission.token}"


def _slug(submission: Submission) -> str:
    parts = [submission.kind.value] if submission.kind is not WorkloadKind.TASK else []
    parts += [part for part in (submission.dag_id, submission.task_id) if part]
    return _slug_of("-".join(parts)) or submission.kind.value


@lru_cache(maxsize=CACHED_VALUES)
def _slug_of(text: str) -> str:
    from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import create_unique_id

    return create_unique_id(text, max_length=_SLUG_LENGTH, unique=False) if text else ""


def make_labels(submission: Submission, owner: Owner) -> dict[str, str]:
    """Return the labels of an artefact's pod.

    :param submission: the artefact
    :param owner: whose it is
    """
    from airflow import __version__ as airflow_version

    values = {
        DEPLOYMENT: owner.deployment,
        WORKER: f"{_WORKER_PREFIX}{owner.scheduler_job_id}",
        **_identity(submission),
        "airflow_version": airflow_version.replace("+", "-"),
    }
    if owner.team_name:
        values[TEAM] = owner.team_name
    return {EXECUTOR: EXECUTOR_VALUE, **{key: label_value(value) for key, value in values.items()}}


def make_annotations(submission: Submission) -> dict[str, str]:
    """Return the annotations of an artefact's pod: exact values.

    :param submission: the artefact
    """
    return _identity(submission)


def _identity(submission: Submission) -> dict[str, str]:
    is_test = submission.kind is WorkloadKind.TEST_CONNECTION
    values = {
        WORKLOAD_TYPE: submission.kind.value,
        CONNECTION_TEST if is_test else LAUNCH_TOKEN: submission.token,
        "dag_id": submission.dag_id,
        "task_id": submission.task_id,
        "run_id": submission.run_id,
        "try_number": None if submission.try_number is None else str(submission.try_number),
        "map_index": str(submission.map_index) if submission.map_index >= 0 else None,
    }
    return {key: value for key, value in values.items() if value is not None}


@lru_cache(maxsize=CACHED_VALUES)
def label_value(value: str) -> str:
    """Return ``value`` as a label value: the one that stock tooling selects by, where that is legal."""
    from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value

    return make_safe_label_value(value).strip("-_.")


def selector(owner: Owner) -> str:
    """Return the selector of all pods of a deployment and team that are not done with.

    :param owner: whose pods; every scheduler of its deployment sees the same ones
    """
    team = f"{TEAM}={label_value(owner.team_name)}" if owner.team_name else f"!{TEAM}"
    return f"{EXECUTOR}={EXECUTOR_VALUE},{DEPLOYMENT}={label_value(owner.deployment)},{team},!{DONE}"


def selector_of_launch(owner: Owner, token: str) -> str:
    """Return the selector of the pods of one launch.

    :param owner: whose pods
    :param token: the launch token
    """
    return f"{selector(owner)},{LAUNCH_TOKEN}={label_value(token)}"


def read_sender(pod: Mapping[str, Any]) -> str | None:
    """Return the job id of the scheduler that made a pod, as its label says.

    :param pod: a pod as the API server tells it
    """
    label = str(((pod.get("metadata") or {}).get("labels") or {}).get(WORKER) or "")
    return label.removeprefix(_WORKER_PREFIX) or None if label.startswith(_WORKER_PREFIX) else None


def read_identity(pod: Mapping[str, Any]) -> PodIdentity | None:
    """Return which artefact a pod is; None for a pod that does not say so in full.

    :param pod: a pod as the API server tells it
    """
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    token = annotations.get(LAUNCH_TOKEN) or annotations.get(CONNECTION_TEST)
    kind = _KINDS.get(annotations.get(WORKLOAD_TYPE))
    where = (metadata.get("namespace"), metadata.get("name"), metadata.get("uid"))
    if not token or kind is None or not all(where):
        return None
    namespace, name, uid = where
    return PodIdentity(token=token, kind=kind, namespace=str(namespace), name=str(name), uid=str(uid))
