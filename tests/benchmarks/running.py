# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: an Airflow of their own, and a process of its own for each measurement.

Progress goes to stderr; stdout is for the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support import database, services

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.environment import AirflowEnvironment

CHILD_SECONDS = 900
"""How long one measurement may take."""


@contextmanager
def migrated(airflow: AirflowEnvironment) -> Iterator[None]:
    """Create and migrate the metadata database, and remove everything afterwards."""
    airflow.create_database()
    try:
        database.migrate()
        yield
    finally:
        database.dispose()
        airflow.drop_database()
        airflow.remove()


def anything_missing(*names: str) -> bool:
    """Tell which of the services are missing, if any are."""
    missing = [reason for name in names if (reason := services.missing(name))]
    for reason in missing:
        say(reason)
    return bool(missing)


def measure(module: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run one measurement in a process of its own, as the scheduler is one, and return what it found.

    :param module: its last line of stdout is the result as JSON
    :param arguments: what to measure
    :param variables: changes to the environment
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        env={**os.environ, "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING", **variables},
        stdout=subprocess.PIPE,
        timeout=CHILD_SECONDS,
        check=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    say(f"{' '.join(arguments)}: {rounded(result)}")
    return result


def footprint() -> float:
    """Return the memory of this process and its children, RSS in MB."""
    import psutil

    own = psutil.Process()
    return float(sum(one.memory_info().rss for one in (own, *own.children(recursive=True))) / 2**20)


def rounded(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers as people read them: one decimal."""
    return {name: round(one, 1) if isinstance(one, float) else one for name, one in numbers.items()}


def say(text: str) -> None:
    """Tell people how it goes."""
    print(text, file=sys.stderr, flush=True)
