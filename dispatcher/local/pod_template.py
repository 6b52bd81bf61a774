# SPDX-License-Identifier: Apache-2.0
"""The pod template of a local stack: a given pod, or a plain one, with the environment that workers need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BASE_CONTAINER = "base"
"""The container in which Airflow runs the workload."""

PLAIN_POD: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "placeholder"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": BASE_CONTAINER, "image": "this-machine"}],
    },
}
"""For the embedded cluster, whose pods are processes of this machine: the image has no meaning there."""


def write_pod_template(target: Path, source: Path | None, env: Mapping[str, str]) -> None:
    """Write a pod template.

    :param target: file to write
    :param source: template to start from; None for ``PLAIN_POD``
    :param env: environment variables for the base container, in addition to its own
    """
    pod = PLAIN_POD if source is None else yaml.safe_load(source.read_text(encoding="utf-8"))
    target.touch(mode=0o600)
    target.write_text(yaml.safe_dump(with_environment(pod, env)), encoding="utf-8")


def with_environment(pod: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the pod with further environment variables in its base container.

    :param pod: manifest of a pod
    :param env: variables to add; the pod's own of the same name give way
    """
    spec = dict(pod["spec"])
    spec["containers"] = [
        _extended(container, env) if container["name"] == BASE_CONTAINER else container
        for container in spec["containers"]
    ]
    return {**pod, "spec": spec}


def _extended(container: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    kept = [variable for variable in container.get("env", ()) if variable["name"] not in env]
    added = [{"name": name, "value": value} for name, value in sorted(env.items())]
    return {**container, "env": kept + added}
