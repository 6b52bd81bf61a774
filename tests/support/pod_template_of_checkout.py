# SPDX-License-Identifier: Apache-2.0
"""Make a pod template's container see this checkout, wherever the checkout lies.

As a command it copies a template from standard input to standard output.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
VOLUME = "checkout"


def with_checkout(pod: dict[str, Any], folder: Path = ROOT) -> dict[str, Any]:
    """Return a pod whose first container has a folder of the node at the same path.

    :param pod: manifest of a pod; it is not changed
    :param folder: the folder
    """
    seen = deepcopy(pod)
    spec = seen["spec"]
    spec.setdefault("volumes", []).append({"name": VOLUME, "hostPath": {"path": str(folder)}})
    mounts = spec["containers"][0].setdefault("volumeMounts", [])
    mounts.append({"name": VOLUME, "mountPath": str(folder)})
    return seen


if __name__ == "__main__":
    yaml.safe_dump(with_checkout(yaml.safe_load(sys.stdin)), sys.stdout)
