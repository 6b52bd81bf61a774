# SPDX-License-Identifier: Apache-2.0
"""Building pods: the base from a template once, the rest per artefact.

The Kubernetes provider merges template, image and override as it does for the stock executor. That is slow,
so the base is merged and turned into plain JSON once per template; most pods then cost a copy of it. Only an
override or a mutation hook takes the way through the provider's models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from airflow.settings import get_policy_plugin_manager
from kubernetes.client import models as k8s

from dispatcher.backends.kubernetes import identity
from dispatcher.backends.kubernetes.coordinators import Coordinators
from dispatcher.backends.kubernetes.diagnosis import BASE_CONTAINER
from dispatcher.backends.kubernetes.templates import Templates, one_line
from dispatcher.domain.errors import ConfigurationError, PermanentError
from dispatcher.domain.pod_claimant import POD_UID_VARIABLE
from dispatcher.domain.workload import WorkloadKind
from dispatcher.settings import WorkloadDelivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.backends.base import Submission
    from dispatcher.backends.kubernetes.identity import Owner
    from dispatcher.backends.kubernetes.options import ClusterOptions
    from dispatcher.backends.kubernetes.templates import Base
    from dispatcher.domain.workload import WorkloadKind

ARGS_LIMIT = 100 * 1024
"""Longest payload, in bytes, that travels in the arguments: Linux takes no single argument of 128 KiB."""

SECRET_LIMIT = 1024 * 1024
"""Most bytes that a Secret may hold."""

POD_LIMIT = 1536 * 1024
"""Most bytes of an object that the cluster's database takes; the API server would say it with a 500."""

COMMAND = ("python", "-m", "workers.pod")
WORKLOAD_VOLUME = "airflow-workload"
WORKLOAD_DIRECTORY = "/airflow-workload"
WORKLOAD_FILE = "workload.json"


@dataclass(frozen=True, slots=True)
class BuiltPod:
    """A pod that is ready to be created.

    :param token: whose it is
    :param kind: what it runs
    :param namespace: where it goes
    :param name: its name
    :param body: the manifest
    :param secret: the workload, if it travels in a Secret of the pod's name; None if it is in the arguments
    """

    token: str
    kind: WorkloadKind
    namespace: str
    name: str
    body: Mapping[str, Any] = field(repr=False)
    secret: str | None = field(default=None, repr=False)

    @property
    def external_id(self) -> str:
        """The pod as the ledger names it."""
        return f"{self.namespace}/{self.name}"

    @property
    def identity(self) -> identity.PodIdentity:
        """Which pod this is to be; it has no uid yet."""
        return identity.PodIdentity(self.token, self.kind, self.namespace, self.name, "")


class PodBuilder:
    """Builds the pods of one executor; may be used by several threads.

    :param options: image, template and namespaces
    :param owner: whose pods they are
    :param delivery: how a pod gets its workload
    :param callback_template: template of the pods of callbacks; None means the same as for tasks
    """

    def __init__(
        self,
        options: ClusterOptions,
        owner: Owner,
        delivery: WorkloadDelivery,
        *,
        callback_template: str | None = None,
    ) -> None:
        self._options = options
        self._owner = owner
        self._delivery = delivery
        self._callback_template = callback_template or options.pod_template_file
        self._templates = Templates(options)
        self._coordinators = Coordinators()

    def check(self) -> None:
        """Make sure that a pod without wishes of its own can be built.

        :raises ConfigurationError: a template, the image or the namespace is missing or wrong
        """
        for template in dict.fromkeys((self._options.pod_template_file, self._callback_template)):
            manifest = self._templates.base(template, self._options.image).manifest
            if not _base_container(manifest).get("image"):
                raise ConfigurationError(
                    "pods have no image: set [kubernetes_executor] worker_container_repository and "
                    "worker_container_tag, or pod_template_file"
                )
        if not self._options.allows(self._options.namespace):
            raise ConfigurationError(
                f"[kubernetes_executor] namespace {self._options.namespace!r} is not in "
                "multi_namespace_mode_namespace_list; add it, or pods that name no other namespace fail"
            )

    def build(self, submission: Submission) -> BuiltPod:
        """Return the pod of one artefact.

        :param submission: the artefact
        :raises PermanentError: its executor_config cannot be used, the mutation hook failed for it, or it is
            too large
        :raises ConfigurationError: the base template is missing or wrong
        """
        by_secret = self._travels_by_secret(submission.payload)
        override, template = _read_executor_config(submission.executor_config)
        pod = self._merged(submission, override, template)
        name = identity.pod_name(submission)
        _set_workload(pod, submission.payload, name if by_secret else None)
        self._set_identity(pod, submission, name)
        if get_policy_plugin_manager().hook.pod_mutation_hook.get_hookimpls():
            pod = _mutated(pod)
            self._set_identity(pod, submission, name)
        return BuiltPod(
            token=submission.token,
            kind=submission.kind,
            namespace=self._namespace_of(pod),
            name=name,
            body=pod,
            secret=submission.payload if by_secret else None,
        )

    def _travels_by_secret(self, payload: str) -> bool:
        size = len(payload.encode())
        if size > SECRET_LIMIT:
            raise PermanentError(
                f"the workload has {size} bytes; a Secret holds at most {SECRET_LIMIT}, so no pod can get it"
            )
        return self._delivery is WorkloadDelivery.SECRET or size > ARGS_LIMIT

    def _merged(
        self, submission: Submission, override: k8s.V1Pod | None, template: str | None
    ) -> dict[str, Any]:
        base = self._base_of(submission, template)
        if override is None:
            return base.copy()
        what = "executor_config: pod_override"
        try:
            pod: dict[str, Any] = PodGenerator.serialize_pod(
                PodGenerator.reconcile_pods(base.model, override)
            )
            # What is no JSON would otherwise come to light in the middle of the batch.
            size = len(json.dumps(pod))
        except Exception as exc:
            raise PermanentError(f"{what} cannot be used: {one_line(exc)}") from exc
        _require_usable(pod, size, what)
        return pod

    def _base_of(self, submission: Submission, template: str | None) -> Base:
        """Return the base of a pod: of its coordinator, of the task's own choice, or the usual one."""
        ti = getattr(submission.workload, "ti", None)
        # The worker too looks the coordinator up by the queue of the task, whatever queue a rule names.
        coordinator = self._coordinators.of_queue(getattr(ti, "queue", None))
        image = coordinator.image or self._options.image
        if coordinator.pod_template_file is not None:
            return self._templates.base(coordinator.pod_template_file, image)
        if template is None:
            is_callback = submission.kind is WorkloadKind.CALLBACK
            usual = self._callback_template if is_callback else self._options.pod_template_file
            return self._templates.base(usual, image)
        try:
            return self._templates.base(template, image)
        except ConfigurationError as exc:
            raise PermanentError(f"executor_config: {exc}") from exc

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
        _set_uid_variable(_base_container(pod))

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
    if config.get("KubernetesExecutor"):
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


def _base_container(pod: Mapping[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    return container


def _require_usable(pod: Mapping[str, Any], size: int, what: str) -> None:
    if size > POD_LIMIT:
        raise PermanentError(f"{what}: the pod has {size} bytes; clusters store at most {POD_LIMIT}")
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not containers or containers[0].get("name") != BASE_CONTAINER:
        raise PermanentError(f"{what}: the first container must be named {BASE_CONTAINER!r}")


def _set_uid_variable(container: dict[str, Any]) -> None:
    """Let the pod know its uid: without it, nobody could tell that its ending is the claimant's."""
    variables = [one for one in container.get("env") or () if one.get("name") != POD_UID_VARIABLE]
    uid = {"name": POD_UID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    container["env"] = [*variables, uid]


def _set_workload(pod: dict[str, Any], payload: str, secret_name: str | None) -> None:
    """Give the base container its workload, in the arguments or mounted from a Secret."""
    container = _base_container(pod)
    if secret_name is None:
        # In arguments, Kubernetes reads $(NAME) as a variable and $$ as a dollar.
        container["args"] = [*COMMAND, "--json-string", payload.replace("$", "$$")]
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
        size = len(json.dumps(mutated))
    except Exception as exc:
        raise PermanentError(f"pod_mutation_hook failed: {one_line(exc)}") from exc
    _require_usable(mutated, size, "pod_mutation_hook")
    return mutated
