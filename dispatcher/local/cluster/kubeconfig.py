# SPDX-License-Identifier: Apache-2.0
"""The kubeconfig that leads a client to the embedded cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

NAME = "embedded"


def write(path: Path, url: str, token: str) -> None:
    """Write a kubeconfig that only this user can read; JSON, which is YAML too.

    :param url: address of the API.
    :param token: bearer token to present.
    :raises OSError: the file cannot be written.
    """
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": url}}],
        "users": [{"name": NAME, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }
    # Written aside and moved: nobody reads half of it, and a file that was there lends no permissions.
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.touch(mode=0o600)
    try:
        aside.write_text(json.dumps(content, indent=2) + "\n")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
