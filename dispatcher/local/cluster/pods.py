# SPDX-License-Identifier: Apache-2.0
"""What the API does with pods before it stores them: defaults, checks, and what an update may change."""

from __future__ import annotations

import copy
from typing import Any

from dispatcher.local.cluster import names
from dispatcher.local.cluster.metadata import metadata_faults
from dispatcher.local.cluster.status import Cause, required, wrong
from dispatcher.local.cluster.store import Json

DEFAULT_SCHEDULER = "default-scheduler"
FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
MAXIMUM_SECONDS = 2**31 - 1

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_SPEC_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": DEFAULT_SCHEDULER,
    "enableServiceLinks": True,
}
_CONTAINER_DEFAULTS: Json = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}


def is_finished(pod: Json) -> bool:
    """Say whether the pod has ended, well or not."""
    return pod["status"]["phase"] in FINISHED_PHASES


def is_terminating(pod: Json) -> bool:
    """Say whether the deletion of the pod has begun."""
    return "deletionTimestamp" in pod["metadata"]


def prepare_create(pod: Json) -> None:
    """Fill in defaults, and start the status afresh whatever the caller sent."""
    spec = pod.setdefault("spec", {})
    for name, value in _SPEC_DEFAULTS.items():
        spec.setdefault(name, copy.deepcopy(value))
    for container in spec.get("containers", []):
        for name, value in _CONTAINER_DEFAULTS.items():
            container.setdefault(name, copy.deepcopy(value))
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def prepare_update(new: Json, old: Json) -> list[Cause]:
    """Keep the status, and refuse a change of the spec beyond the few fields that may change."""
    new["status"] = copy.deepcopy(old["status"])
    new.setdefault("spec", {})
    if _fixed_part(new["spec"]) == _fixed_part(old["spec"]):
        return []
    message = (
        "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
        "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or `spec.tolerations`"
    )
    return [Cause("spec", message, "FieldValueForbidden")]


def prepare_status_update(new: Json, old: Json) -> None:
    """Keep the spec and the owners; labels and annotations may change along with the status."""
    new["spec"] = copy.deepcopy(old["spec"])
    new["status"] = {**new.get("status", {}), "qosClass": old["status"]["qosClass"]}
    new["status"].setdefault("phase", "Pending")
    new["metadata"].pop("ownerReferences", None)
    if "ownerReferences" in old["metadata"]:
        new["metadata"]["ownerReferences"] = copy.deepcopy(old["metadata"]["ownerReferences"])


def pod_faults(pod: Json) -> list[Cause]:
    """Return what is wrong with a pod."""
    causes = metadata_faults(pod["metadata"], names.subdomain_faults)
    spec = pod["spec"]
    if not spec.get("containers"):
        causes.append(required("spec.containers"))
    volumes = {volume.get("name") for volume in spec.get("volumes", [])}
    seen: set[str] = set()
    for number, container in enumerate(spec.get("containers", [])):
        path = f"spec.containers[{number}]"
        causes += _container_faults(container, path, volumes)
        if container.get("name") in seen:
            message = f'Duplicate value: "{container["name"]}"'
            causes.append(Cause(f"{path}.name", message, "FieldValueDuplicate"))
        seen.add(container.get("name", ""))
    return causes + _policy_faults(spec)


def _container_faults(container: Json, path: str, volumes: set[Any]) -> list[Cause]:
    causes = []
    if not (name := container.get("name")):
        causes.append(required(f"{path}.name"))
    else:
        causes += [wrong(f"{path}.name", name, fault) for fault in names.dns_label_faults(name)]
    if not container.get("image"):
        causes.append(required(f"{path}.image"))
    for number, variable in enumerate(container.get("env", [])):
        field = f"{path}.env[{number}].name"
        if not (name := variable.get("name")):
            causes.append(required(field))
        else:
            causes += [wrong(field, name, fault) for fault in names.environment_name_faults(name)]
    for number, mount in enumerate(container.get("volumeMounts", [])):
        if mount.get("name") not in volumes:
            field = f"{path}.volumeMounts[{number}].name"
            causes.append(Cause(field, f'Not found: "{mount.get("name", "")}"', "FieldValueNotFound"))
        if not mount.get("mountPath"):
            causes.append(required(f"{path}.volumeMounts[{number}].mountPath"))
    return causes


def _policy_faults(spec: Json) -> list[Cause]:
    causes = []
    if (policy := spec["restartPolicy"]) not in _RESTART_POLICIES:
        supported = ", ".join(f'"{name}"' for name in _RESTART_POLICIES)
        message = f'Unsupported value: "{policy}": supported values: {supported}'
        causes.append(Cause("spec.restartPolicy", message, "FieldValueNotSupported"))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAXIMUM_SECONDS:
        hint = f"must be between 1 and {MAXIMUM_SECONDS}, inclusive"
        causes.append(wrong("spec.activeDeadlineSeconds", deadline, hint))
    return causes


def _fixed_part(spec: Json) -> Json:
    fixed = copy.deepcopy(spec)
    for name in ("activeDeadlineSeconds", "tolerations"):
        fixed.pop(name, None)
    for container in [*fixed.get("containers", []), *fixed.get("initContainers", [])]:
        container.pop("image", None)
    return fixed
