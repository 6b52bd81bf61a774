# SPDX-License-Identifier: Apache-2.0
"""What to run for a pod: its container as a command of this machine."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dispatcher.local.cluster import mounts
from dispatcher.local.cluster.mounts import SecretLookup
from dispatcher.local.cluster.store import Json

PREFERRED_CONTAINER = "base"

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_FIELD_WITH_KEY = re.compile(r"(metadata\.(?:labels|annotations))\['(.+)'\]")


class NotRunnableError(Exception):
    """The container cannot be started now; the message says why."""


@dataclass(frozen=True)
class Command:
    """A command of this machine.

    :param words: program and arguments.
    :param environment: its whole environment.
    :param directory: its working directory; the cluster's own when absent.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str | None


def choose(pod: Json) -> Json:
    """Return the container of a pod that runs: ``base``, or else the first."""
    containers: list[Json] = pod["spec"]["containers"]
    for container in containers:
        if container["name"] == PREFERRED_CONTAINER:
            return container
    return containers[0]


def command(pod: Json, directory: Path, secret: SecretLookup, inherited: Mapping[str, str]) -> Command:
    """Return the command that stands for a pod's container.

    ``python`` is this interpreter. An image's entry point is unknown here, so without a ``command`` the first
    of the ``args`` is the program.

    :param directory: the pod's own, for its volumes.
    :param secret: finds secrets of the pod's namespace.
    :param inherited: environment that the pod's own is put on top of.
    :raises NotRunnableError: a secret that its environment names is missing, or there is no command.
    :raises NotMountableError: a volume cannot be made.
    """
    container = choose(pod)
    places = mounts.make(pod, container, directory, secret)
    own = {name: places.resolve(value) for name, value in _environment(pod, container, secret).items()}
    words = [*container.get("command", []), *container.get("args", [])]
    if not words:
        raise NotRunnableError("no command specified")
    resolved = [places.resolve(expand(word, own)) for word in words]
    if resolved[0] == "python":
        resolved[0] = sys.executable
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    environment = {**inherited, "PATH": path, "HOSTNAME": pod["metadata"]["name"], **own}
    working_directory = container.get("workingDir")
    return Command(
        tuple(resolved), environment, places.resolve(working_directory) if working_directory else None
    )


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable; ``$$`` is a dollar, and an unknown name stays as it is."""

    def value(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return variables.get(match.group(1), match.group(0))

    return _REFERENCE.sub(value, text)


def _environment(pod: Json, container: Json, secret: SecretLookup) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        reference = source.get("secretRef")
        if reference is None:
            raise NotRunnableError("envFrom: the embedded cluster has secrets only")
        data = _secret_data(reference, secret)
        found |= {source.get("prefix", "") + key: _text(value) for key, value in data.items()}
    for variable in container.get("env", []):
        if "valueFrom" in variable:
            value = _value_from(pod, variable["valueFrom"], secret)
            if value is not None:
                found[variable["name"]] = value
        else:
            found[variable["name"]] = expand(variable.get("value", ""), found)
    return found


def _value_from(pod: Json, source: Json, secret: SecretLookup) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"].get("fieldPath", ""))
    if "secretKeyRef" not in source:
        raise NotRunnableError(f"the embedded cluster cannot take a value from {', '.join(source)}")
    reference = source["secretKeyRef"]
    data, key = _secret_data(reference, secret), reference.get("key", "")
    if key in data:
        return _text(data[key])
    if reference.get("optional"):
        return None
    raise NotRunnableError(
        f"couldn't find key {key} in Secret {pod['metadata']['namespace']}/{reference['name']}"
    )


def _secret_data(reference: Json, secret: SecretLookup) -> dict[str, str]:
    name = reference.get("name", "")
    found = secret(name)
    if found is None:
        if reference.get("optional"):
            return {}
        raise NotRunnableError(f'secret "{name}" not found')
    data: dict[str, str] = found.get("data", {})
    return data


def _field(pod: Json, path: str) -> str:
    if match := _FIELD_WITH_KEY.fullmatch(path):
        steps = [*match.group(1).split("."), match.group(2)]
    else:
        steps = path.split(".")
    value: object = pod
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    if value is None and steps[0] not in {"metadata", "spec", "status"}:
        raise NotRunnableError(f"unsupported fieldPath: {path}")
    return "" if value is None else str(value)


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
