# SPDX-License-Identifier: Apache-2.0
"""Take the tour on the Airflow that the environment describes.

    python -m dispatcher.local.tour --worker-log FILE [--start SECONDS]

Exit code 0 only if all came out as it must; otherwise the reasons are on standard error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher.local.errors import LocalModeError
from dispatcher.local.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the tour and return an exit code.

    :param arguments: command line without the program's name; the process's own when absent
    """
    options = _parse(arguments)
    # Imported late: this takes seconds, and a wrong option should not.
    from dispatcher.cli.table import print_launches
    from dispatcher.local.tour.rest import RestApi
    from dispatcher.local.tour.system import find_system
    from dispatcher.local.tour.tour import Tour

    try:
        system = find_system(options.worker_log)
        tour = Tour(system, RestApi(system.api_url, system.login), Progress(options.start))
    except LocalModeError as exc:
        print(f"failed: {exc}", file=sys.stderr)
        return FAILED
    try:
        faults = tour.take()
    except LocalModeError as exc:
        faults = [str(exc)]
    print_launches(tour.launches())
    for fault in faults:
        print(f"not as it must be: {fault}", file=sys.stderr)
    return FAILED if faults else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dispatcher.local.tour",
        description="Run the example DAG, provoke stale launches, and judge what comes of it.",
    )
    parser.add_argument(
        "--worker-log", type=Path, required=True, help="log file of the one Celery worker that runs"
    )
    parser.add_argument(
        "--start",
        type=float,
        help="from when progress lines count, in seconds since the epoch (default: now)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
