# SPDX-License-Identifier: Apache-2.0
"""Building pods: the base from a template once, the rest per artefact.

The Kubernetes provider merges template, image and override as it does for the stock executor. That is slow,
so the base is merged and turned into plain JSON once per template; most pods then cost a copy of it. Only an
override or a mutation hook takes the way through the provider's models.
"""

from __future__ import annotations

import copy
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.settings import get_policy_plugin_manager
from kubernetes.client import models as k8s

from dispatcher.backends.kubernetes import identity
from dispatcher.backends.kubernetes.diagnosis import BASE_CONTAINER
from dispatcher.domain.errors import ConfigurationError, PermanentError
from dispatcher.domain.pod_claimant import POD_UID_VARIABLE
from dispatcher.settings import WorkloadDelivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.backends.base import Submission
    from dispatcher.backends.kubernetes.identity import Owner
    from dispatcher.backends.kubernetes.options import ClusterOptions

ARGS_LIMIT = 100 * 1024
"""Longest payload, in bytes, that travels in the arguments: Linux takes no single argument of 128 KiB."""

COMMAND = ("python", "-m", "workers.pod")
WORKLOAD_VOLUME = "airflow-workload"
WORKLOAD_DIRECTORY = "/airflow-workload"
WORKLOAD_FILE = "workload.json"

_REASON_LIMIT = 300


@dataclass(frozen=True, slots=True)
class BuiltPod:
    """A pod that is ready to be created.

    :param token: whose it is
    :param namespace: where it goes
    :param name: its name
    :param body: the manifest
    :param secret: the workload, if it travels in a Secret of the pod's name; None if it is in the arguments
    """

    token: str
    namespace: str
    name: str
    body: Mapping[str, Any] = field(repr=False)
    secret: str | None = field(default=None, repr=False)

    @property
    def external_id(self) -> str:
        """The pod as the ledger names it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Base:
    version: tuple[int, int]
    model: k8s.V1Pod
    manifest: Mapping[str, Any]


class PodBuilder:
    """Builds the pods of one executor.

    :param options: image, template and namespaces
    :param owner: whose pods they are
    :param delivery: how a pod gets its workload
    """

    def __init__(self, options: ClusterOptions, owner: Owner, delivery: WorkloadDelivery) -> None:
        self._options = options
        self._owner = owner
        self._delivery = delivery
        self._bases: dict[str | None, _Base] = {}
        self._lock = threading.Lock()

    def check(self) -> None:
        """Make sure that a pod without wishes of its own can be built.

        :raises ConfigurationError: the base template or the image is missing or wrong
        """
        manifest = self._base(self._options.pod_template_file).manifest
        if not _base_container(manifest).get("image"):
            raise ConfigurationError(
                "pods have no image: set [kubernetes_executor] worker_container_repository and "
                "worker_container_tag, or pod_template_file"
            )

    def build(self, submission: Submission) -> BuiltPod:
        """Return the pod of one artefact.

        :param submission: the artefact
        :raises PermanentError: its executor_config cannot be used, or the mutation hook failed for it
        :raises ConfigurationError: the base template is missing or wrong
        """
        override, template = _read_executor_config(submission.executor_config)
        pod = self._merged(override, template)
        by_secret = self._travels_by_secret(submission.payload)
        name = identity.pod_name(submission)
        _set_workload(pod, submission.payload, name if by_secret else None)
        self._set_identity(pod, submission, name)
        if get_policy_plugin_manager().hook.pod_mutation_hook.get_hookimpls():
            pod = _mutated(pod)
            self._set_identity(pod, submission, name)
        return BuiltPod(
            token=submission.token,
            namespace=self._namespace_of(pod),
            name=name,
            body=pod,
            secret=submission.payload if by_secret else None,
        )

    def _travels_by_secret(self, payload: str) -> bool:
        return self._delivery is WorkloadDelivery.SECRET or len(payload.encode()) > ARGS_LIMIT

    def _merged(self, override: k8s.V1Pod | None, template: str | None) -> dict[str, Any]:
        if template is None:
            base = self._base(self._options.pod_template_file)
        else:
            try:
                base = self._base(template)
            except ConfigurationError as exc:
                raise PermanentError(f"executor_config: {exc}") from exc
        if override is None:
            return copy.deepcopy(dict(base.manifest))
        try:
            pod: dict[str, Any] = PodGenerator.serialize_pod(
                PodGenerator.reconcile_pods(base.model, override)
            )
            # What is no JSON would otherwise come to light in the middle of the batch.
            json.dumps(pod)
        except Exception as exc:
            raise PermanentError(f"executor_config: pod_override cannot be used: {_one_line(exc)}") from exc
        _require_base_container(pod, "executor_config: pod_override")
        return pod

    def _base(self, template: str | None) -> _Base:
        """Return the base of a template, merged anew when its file has changed."""
        version = _version_of(template)
        with self._lock:
            base = self._bases.get(template)
            if base is None or base.version != version:
                base = self._bases[template] = self._load(template, version)
        return base

    def _load(self, template: str | None, version: tuple[int, int]) -> _Base:
        container = k8s.V1Container(
            name=BASE_CONTAINER,
            image=self._options.image,
            env=[
                k8s.V1EnvVar(name="AIRFLOW_IS_K8S_EXECUTOR_POD", value="True"),
                k8s.V1EnvVar(
                    name=POD_UID_VARIABLE,
                    value_from=k8s.V1EnvVarSource(
                        field_ref=k8s.V1ObjectFieldSelector(field_path="metadata.uid")
                    ),
                ),
            ],
        )
        ours = k8s.V1Pod(
            api_version="v1",
            kind="Pod",
            metadata=k8s.V1ObjectMeta(namespace=self._options.namespace),
            spec=k8s.V1PodSpec(containers=[container]),
        )
        try:
            model = PodGenerator.reconcile_pods(_read_template(template), ours)
            manifest = PodGenerator.serialize_pod(model)
        except ConfigurationError:
            raise
        except Exception as exc:
            raise ConfigurationError(
                f"pod_template_file {template} is not a pod template: {_one_line(exc)}"
            ) from exc
        return _Base(version, model, manifest)

    def _set_identity(self, pod: dict[str, Any], submission: Submission, name: str) -> None:
        """Make a pod say what it is, whatever template, override and hook say."""
        metadata = pod.setdefault("metadata", {})
        metadata["name"] = name
        metadata.pop("generateName", None)
        labels = {**(metadata.get("labels") or {}), **identity.make_labels(submission, self._owner)}
        labels.pop(identity.STOCK_EXECUTOR, None)
        labels.pop(identity.DONE, None)
        metadata["labels"] = labels
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            **identity.make_annotations(submission),
        }
        # A workload is started once; starting it again is the dispatcher's decision.
        pod["spec"]["restartPolicy"] = "Never"

    def _namespace_of(self, pod: Mapping[str, Any]) -> str:
        namespace = pod["metadata"].get("namespace") or self._options.namespace
        if not self._options.allows(namespace):
            raise PermanentError(
                f"namespace {namespace!r} is not watched: add it to [kubernetes_executor] "
                "multi_namespace_mode_namespace_list, or leave the namespace out of the pod"
            )
        return str(namespace)


def _read_executor_config(config: Any) -> tuple[k8s.V1Pod | None, str | None]:
    """Return the pod override and the template path that a task asks for."""
    if config is None or config == {}:
        return None, None
    if not isinstance(config, dict):
        raise PermanentError(f"executor_config must be a dictionary, not a {type(config).__name__}")
    if "KubernetesExecutor" in config:
        raise PermanentError("executor_config: the key KubernetesExecutor is not supported; use pod_override")
    override, template = config.get("pod_override"), config.get("pod_template_file")
    if override is not None and not isinstance(override, k8s.V1Pod):
        raise PermanentError(
            "executor_config: pod_override must be a kubernetes.client.models.V1Pod, "
            f"not a {type(override).__name__}"
        )
    if template is not None and not isinstance(template, str):
        raise PermanentError(
            f"executor_config: pod_template_file must be a path, not a {type(template).__name__}"
        )
    return override, template or None


def _read_template(template: str | None) -> k8s.V1Pod:
    if template is None:
        return k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name=BASE_CONTAINER)]))
    pod = PodGenerator.deserialize_model_file(template)
    if not isinstance(pod, k8s.V1Pod) or not pod.spec or not pod.spec.containers:
        raise ConfigurationError(f"pod_template_file {template} describes no pod with a container")
    if any(container.name == BASE_CONTAINER for container in pod.spec.containers[1:]):
        raise ConfigurationError(
            f"pod_template_file {template}: the container {BASE_CONTAINER!r} must be the first"
        )
    return pod


def _version_of(template: str | None) -> tuple[int, int]:
    if template is None:
        return (0, 0)
    try:
        stat = Path(template).stat()
    except OSError as exc:
        raise ConfigurationError(f"pod_template_file {template} cannot be read: {exc.strerror}") from exc
    return (stat.st_mtime_ns, stat.st_size)


def _base_container(pod: Mapping[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    return container


def _require_base_container(pod: Mapping[str, Any], what: str) -> None:
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not containers or containers[0].get("name") != BASE_CONTAINER:
        raise PermanentError(f"{what}: the first container must be named {BASE_CONTAINER!r}")


def _set_workload(pod: dict[str, Any], payload: str, secret_name: str | None) -> None:
    """Give the base container its workload, in the arguments or mounted from a Secret."""
    container = _base_container(pod)
    if secret_name is None:
        container["args"] = [*COMMAND, "--json-string", payload]
        return
    container["args"] = [*COMMAND, "--json-path", f"{WORKLOAD_DIRECTORY}/{WORKLOAD_FILE}"]
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": WORKLOAD_VOLUME, "mountPath": WORKLOAD_DIRECTORY, "readOnly": True},
    ]
    pod["spec"]["volumes"] = [
        *(pod["spec"].get("volumes") or ()),
        {"name": WORKLOAD_VOLUME, "secret": {"secretName": secret_name}},
    ]


def _mutated(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as the deployment's ``pod_mutation_hook`` wants it."""
    try:
        model = PodGenerator.deserialize_model_dict(pod)
        get_policy_plugin_manager().hook.pod_mutation_hook(pod=model)
        mutated: dict[str, Any] = PodGenerator.serialize_pod(model)
        json.dumps(mutated)
    except Exception as exc:
        raise PermanentError(f"pod_mutation_hook failed: {_one_line(exc)}") from exc
    _require_base_container(mutated, "pod_mutation_hook")
    return mutated


def _one_line(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}"[:_REASON_LIMIT] if text else type(exc).__name__
