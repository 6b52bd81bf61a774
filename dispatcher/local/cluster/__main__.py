# SPDX-License-Identifier: Apache-2.0
"""Run the embedded cluster.

    python -m dispatcher.local.cluster --host 127.0.0.1 --port 0 --kubeconfig FILE

Prints one line with the address once it is ready, and ends on SIGTERM or SIGINT with all its pods.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

MISSING = (
    "dispatcher.local.cluster: the package {name!r} is missing; "
    "install it with: pip install 'airflow-hybrid-dispatcher[local]'"
)
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT.

    :param arguments: command line without the program's name; the process's own when absent.
    :return: exit code: 0 after a signal, 2 when the cluster cannot start (the reason is on standard error).
    """
    given = _parse(arguments)
    try:
        from dispatcher.local.cluster import server
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"starlette", "uvicorn"}:
            raise
        print(MISSING.format(name=package), file=sys.stderr)
        return USAGE_ERROR
    options = server.Options(
        host=given.host,
        port=given.port,
        kubeconfig=given.kubeconfig,
        max_running=given.max_running,
        history=given.history,
        bookmark_seconds=given.bookmark_seconds,
        expired_watch=given.expired_watch,
    )
    # The server raises a signal again once it has stopped serving; the pods still have to end then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    try:
        asyncio.run(server.serve(options, _announce))
    except OSError as error:
        print(f"dispatcher.local.cluster: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _announce(url: str) -> None:
    print(f"embedded cluster ready at {url}", flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dispatcher.local.cluster",
        description="Serve a Kubernetes API whose pods are processes of this machine.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        required=True,
        help="file to write for clients, readable by this user alone",
    )
    parser.add_argument(
        "--max-running",
        type=_positive,
        default=max(2, 2 * (os.cpu_count() or 1)),
        help="pods that run at the same time; others stay Pending (default: %(default)s)",
    )
    parser.add_argument(
        "--history",
        type=_positive,
        default=2000,
        help="changes that a watch can go back, per resource (default: %(default)s)",
    )
    parser.add_argument(
        "--bookmark-seconds",
        type=float,
        default=60.0,
        help="time between two bookmarks of a watch (default: %(default)s)",
    )
    parser.add_argument(
        "--expired-watch",
        choices=("event", "status"),
        default="event",
        help="refuse a watch from a forgotten version by an ERROR event or by HTTP status 410",
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
