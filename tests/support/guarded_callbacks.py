# SPDX-License-Identifier: Apache-2.0
"""Callbacks for tests of workers; they note that they ran in the file that GUARD_MARKS names."""

from __future__ import annotations

import os
from pathlib import Path


def succeed(word: str = "callback") -> None:
    """Leave a mark."""
    with Path(os.environ["GUARD_MARKS"]).open("a") as file:
        file.write(f"{word}\n")


def fail() -> None:
    """Leave a mark, and fail."""
    succeed("failed callback")
    raise ValueError("the pager is unreachable")


def read_variable() -> None:
    """Leave the value of a variable as mark."""
    from airflow.sdk import Variable

    succeed(Variable.get("guarded"))


def read_connection_and_variable() -> None:
    """Leave the host of a connection and the value of a variable as mark."""
    from airflow.sdk import Connection, Variable

    succeed(f"{Connection.get('guarded').host} {Variable.get('guarded')}")


def measure(text: str) -> None:
    """Leave the length of what was given as mark."""
    succeed(str(len(text)))
