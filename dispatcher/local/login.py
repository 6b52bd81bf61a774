# SPDX-License-Identifier: Apache-2.0
"""The one user of a local stack's UI and REST API."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

USER = "admin"


@dataclass(frozen=True, slots=True)
class Login:
    """User name and password."""

    user: str
    password: str = field(repr=False)


def new_login() -> Login:
    """Return a login with a random password."""
    return Login(USER, secrets.token_urlsafe(9))


def write_passwords(path: Path, login: Login) -> None:
    """Write the file from which Airflow's simple auth manager takes passwords.

    :param path: where ``[core] simple_auth_manager_passwords_file`` points
    """
    path.touch(mode=0o600)
    path.write_text(json.dumps({login.user: login.password}), encoding="utf-8")


def read_passwords(path: Path) -> Login:
    """Return the login in a passwords file that ``write_passwords`` wrote."""
    ((user, password),) = json.loads(path.read_text(encoding="utf-8")).items()
    return Login(user, password)
