# SPDX-License-Identifier: Apache-2.0
"""Entry point of a pod: ``python -m workers.pod --json-path FILE | --json-string JSON``.

Takes the flags of ``airflow.sdk.execution_time.execute_workload`` and writes the same JSON log to stdout.
Exit code 0: the workload ran and its report was accepted, or its launch was refused or stopped (rule 12).
1: it could not be run, or its report was not delivered. 2: there is no workload to read. 75: the workload
waited for longer than its token is valid, and nothing was run; it is launched again without a retry.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher.domain.wire import EXIT_EXPIRED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.executors.workloads import ExecutorWorkload

log = logging.getLogger("workers.pod")

EXIT_FAILED = 1
EXIT_UNREADABLE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workload that the arguments name, and return the exit code of the pod.

    :param argv: the command line's arguments; None means the process's own
    :raises SystemExit: code 2, the arguments are not understood
    """
    args = _parser().parse_args(argv)
    try:
        payload = Path(args.json_path).read_bytes() if args.json_path else args.json_string
    except OSError as exc:
        return _unreadable(exc)

    from workers.outcomes import InvalidWorkloadError
    from workers.payload import read_workload

    try:
        workload = read_workload(payload)
    except InvalidWorkloadError as exc:
        return _unreadable(exc)
    return _run(workload)


def _run(workload: ExecutorWorkload) -> int:
    from airflow.sdk.log import configure_logging
    from airflow.settings import dispose_orm

    from workers.guard import run_workload
    from workers.outcomes import ExpiredWorkloadError

    dispose_orm(do_log=False)
    configure_logging(output=sys.stdout.buffer, json_output=True)
    kind = type(workload).__name__
    log.info("Running %s %s", kind, workload.display_name)
    try:
        # The pod's log is read from its stdout.
        outcome = run_workload(workload, subprocess_logs_to_stdout=True)
    except ExpiredWorkloadError as exc:
        log.warning("%s", exc)
        return EXIT_EXPIRED
    except Exception:
        log.exception("%s %s failed", kind, workload.display_name)
        return EXIT_FAILED
    log.info("%s", outcome)
    return 0


def _unreadable(exc: Exception) -> int:
    sys.stderr.write(f"Cannot read the workload: {exc}\n")
    return EXIT_UNREADABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.pod", description="Run one Airflow workload.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json-path", metavar="FILE", help="file with the JSON of the workload")
    source.add_argument("--json-string", metavar="JSON", help="the JSON of the workload itself")
    return parser


if __name__ == "__main__":
    sys.exit(main())
