# SPDX-License-Identifier: Apache-2.0
"""Airflow's command line in a process of its own, with a clean Airflow home."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COMMAND_SECONDS = 180

_SEVERAL = """
import sys
from airflow.cli.cli_parser import get_parser
parser = get_parser()
for command in sys.argv[1:]:
    arguments = parser.parse_args(command.split())
    arguments.func(arguments)
"""


def run_airflow(
    *arguments: str, home: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``airflow`` with ``arguments`` and return what it printed and its exit code.

    :param home: Airflow's home; nothing of this process's Airflow is passed on
    :param env: further environment variables
    """
    return _run([sys.executable, "-m", "airflow", *arguments], home, env or {})


def run_airflow_commands(
    *commands: str, home: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run several commands one after the other in one process, which is quicker; stop at the first failure.

    :param commands: each a command line without the word ``airflow``
    """
    return _run([sys.executable, "-c", _SEVERAL, *commands], home, env or {})


def _run(command: list[str], home: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    return subprocess.run(
        command,
        env={**outer, "AIRFLOW_HOME": str(home), "COLUMNS": "200", **env},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
