# SPDX-License-Identifier: Apache-2.0
"""The kubeconfig that leads a client to the embedded cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

NAME = "embedded"
_OTHERS = 0o077


def token_in(path: Path) -> str | None:
    """Return the token in a kubeconfig that ``write`` wrote, so that a cluster can start again under it.

    :param path: None comes back where it is missing, not one of ours, or open to others.
    """
    try:
        if path.stat().st_mode & _OTHERS:
            return None
        content = json.loads(path.read_text())
        return str(content["users"][0]["user"]["token"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


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
