# SPDX-License-Identifier: Apache-2.0
"""Bases of pods: a template merged with what every pod of this executor has, once per file and image."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import models as k8s

from dispatcher.backends.kubernetes.diagnosis import BASE_CONTAINER
from dispatcher.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.backends.kubernetes.options import ClusterOptions

EXECUTORS_VARIABLE = "AIRFLOW__CORE__EXECUTOR"
"""A DAG is only loaded where the executors that its tasks ask for are known, in a pod too (fault 4)."""

_REASON_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Base:
    """What all pods of one template and image begin with.

    :param model: for merging with an override
    :param manifest: the same as plain JSON
    :param text: the same as JSON text, which is read faster than a nested dictionary is copied
    """

    model: k8s.V1Pod
    manifest: Mapping[str, Any]
    text: str

    def copy(self) -> dict[str, Any]:
        """Return the manifest, to be changed."""
        pod: dict[str, Any] = json.loads(self.text)
        return pod


class Templates:
    """Keeps the bases; a file that has changed is read again. May be used by several threads.

    :param options: namespace, and what else every pod gets
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._bases: dict[tuple[str | None, str | None], tuple[tuple[int, int], Base]] = {}
        self._lock = threading.Lock()

    def base(self, path: str | None, image: str | None) -> Base:
        """Return the base of a template.

        :param path: the template; None means the built-in one
        :param image: of the container ``base``; None leaves it to the template
        :raises ConfigurationError: the template is missing or wrong
        """
        version = _version_of(path)
        with self._lock:
            known = self._bases.get((path, image))
            if known is not None and known[0] == version:
                return known[1]
            base = self._load(path, image)
            self._bases[path, image] = (version, base)
            return base

    def _load(self, path: str | None, image: str | None) -> Base:
        try:
            model = PodGenerator.reconcile_pods(_read(path), self._ours(image))
            manifest = PodGenerator.serialize_pod(model)
        except ConfigurationError:
            raise
        except Exception as exc:
            raise ConfigurationError(
                f"pod_template_file {path} is not a pod template: {one_line(exc)}"
            ) from exc
        return Base(model, manifest, json.dumps(manifest))

    def _ours(self, image: str | None) -> k8s.V1Pod:
        return k8s.V1Pod(
            api_version="v1",
            kind="Pod",
            metadata=k8s.V1ObjectMeta(namespace=self._options.namespace),
            spec=k8s.V1PodSpec(
                containers=[k8s.V1Container(name=BASE_CONTAINER, image=image, env=self._variables())]
            ),
        )

    def _variables(self) -> list[k8s.V1EnvVar]:
        variables = [k8s.V1EnvVar(name="AIRFLOW_IS_K8S_EXECUTOR_POD", value="True")]
        if self._options.executors:
            variables.append(k8s.V1EnvVar(name=EXECUTORS_VARIABLE, value=self._options.executors))
        return variables


def _read(path: str | None) -> k8s.V1Pod:
    if path is None:
        return k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name=BASE_CONTAINER)]))
    pod = PodGenerator.deserialize_model_file(path)
    if not isinstance(pod, k8s.V1Pod) or not pod.spec or not pod.spec.containers:
        raise ConfigurationError(f"pod_template_file {path} describes no pod with a container")
    first, *others = pod.spec.containers
    if any(container.name == BASE_CONTAINER for container in others):
        raise ConfigurationError(
            f"pod_template_file {path}: the container {BASE_CONTAINER!r} must be the first"
        )
    if first.env:
        # Templates name the executor that was usual in pods; a task that asks for another would not be found.
        first.env = [variable for variable in first.env if variable.name != EXECUTORS_VARIABLE]
    return pod


def _version_of(path: str | None) -> tuple[int, int]:
    if path is None:
        return (0, 0)
    try:
        stat = os.stat(path)  # noqa: PTH116  # once for every pod, and a Path costs more than the call
    except OSError as exc:
        raise ConfigurationError(f"pod_template_file {path} cannot be read: {exc.strerror}") from exc
    return (stat.st_mtime_ns, stat.st_size)


def one_line(exc: BaseException) -> str:
    """Return what an exception says, as one line of limited length."""
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}"[:_REASON_LIMIT] if text else type(exc).__name__
