# SPDX-License-Identifier: Apache-2.0
"""A secrets back end for tests: configuration values from the JSON file that SECRET_FILE names."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow.sdk.bases.secrets_backend import BaseSecretsBackend


class SecretFile(BaseSecretsBackend):
    """The back end."""

    def get_config(self, key: str) -> str | None:
        """Return the value of a key."""
        values: dict[str, str] = json.loads(Path(os.environ["SECRET_FILE"]).read_text())
        return values.get(key)
