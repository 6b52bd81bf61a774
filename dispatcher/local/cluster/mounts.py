# SPDX-License-Identifier: Apache-2.0
"""Volumes of a pod as directories of this machine, and where a text names them.

A process cannot have a file system of its own, so a mount path is replaced by the volume's directory in the
container's command, arguments and environment values: ``--json-path /run/workload/input.json`` becomes
``--json-path <directory of the pod>/volumes/workload/input.json``. A path that the program computes by
itself, or reads from a file, is not replaced.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from dispatcher.local.cluster.store import Json

SecretLookup: TypeAlias = Callable[[str], Json | None]
"""Returns the secret of a name in the pod's namespace, if it exists."""


class NotMountableError(Exception):
    """A volume cannot be made now; the message says why."""


@dataclass(frozen=True)
class Mounts:
    """Mount paths and the places that stand for them.

    :param places: place by mount path.
    """

    places: Mapping[str, Path]

    def resolve(self, text: str) -> str:
        """Return a text with every mount path in it, as a whole path or the head of one, replaced."""
        if not self.places:
            return text
        # The longest first, and in one pass: a place may itself lie under another mount path.
        paths = "|".join(map(re.escape, sorted(self.places, key=len, reverse=True)))
        pattern = rf"(?<![\w./-])({paths})(?![\w.-])"
        return re.sub(pattern, lambda match: str(self.places[match.group()]), text)


def make(pod: Json, container: Json, directory: Path, secret: SecretLookup) -> Mounts:
    """Make the volumes that a container mounts.

    :param directory: the pod's own; secrets are written there, readable by this user alone.
    :raises NotMountableError: a secret or a key of it is missing, or the kind of volume is not served.
    """
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    places = {}
    for mount in container.get("volumeMounts", []):
        volume = _place(volumes[mount["name"]], directory, secret)
        place = _inside(volume, mount.get("subPath", "."))
        mount_path = mount["mountPath"].rstrip("/")
        if mount_path and str(place) != mount_path:
            places[mount_path] = place
    return Mounts(places)


def _place(volume: Json, directory: Path, secret: SecretLookup) -> Path:
    name = volume["name"]
    if "hostPath" in volume:
        return Path(volume["hostPath"]["path"])
    place: Path = directory / "volumes" / name
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if "secret" in volume:
        _write(place, _secret_files(volume, secret))
    elif volume.keys() - {"name", "emptyDir"}:
        kind = ", ".join(sorted(volume.keys() - {"name"}))
        raise NotMountableError(f'volume "{name}": the embedded cluster has no {kind} volumes')
    return place


def _secret_files(volume: Json, secret: SecretLookup) -> Iterable[tuple[str, str]]:
    source = volume["secret"]
    name, optional = source.get("secretName", ""), source.get("optional", False)
    found = secret(name)
    if found is None:
        if optional:
            return []
        raise NotMountableError(
            f'MountVolume.SetUp failed for volume "{volume["name"]}" : secret "{name}" not found'
        )
    data = found.get("data", {})
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not optional:
        raise NotMountableError(f'volume "{volume["name"]}" references non-existent secret key: {missing[0]}')
    return [(item["path"], data[item["key"]]) for item in items if item["key"] in data]


def _write(place: Path, files: Iterable[tuple[str, str]]) -> None:
    for path, content in files:
        target = _inside(place, path)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.touch(mode=0o600)
        target.write_bytes(base64.b64decode(content))


def _inside(place: Path, relative: str) -> Path:
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts:
        raise NotMountableError(f"{relative} leads out of the volume")
    return place / path
