# SPDX-License-Identifier: Apache-2.0
"""The embedded broker: the Redis protocol over TCP, in memory, for the demo and for tests.

    python -m dispatcher.local.broker --host 127.0.0.1 --port 0

It carries Celery (queues, results, revokes, pings) but keeps nothing after it ends: it is no broker for work
that matters.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from socketserver import BaseServer
from typing import Any

MISSING = (
    "dispatcher.local.broker: the package 'fakeredis' is missing; "
    "install it with: pip install 'airflow-hybrid-dispatcher[local]'"
)
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; print one line with the address once connections are accepted.

    :param arguments: command line without the program's name; the process's own when absent.
    :return: exit code: 0 after a signal, 2 when the broker cannot start (the reason is on standard error).
    """
    options = _parse(arguments)
    try:
        from fakeredis import TcpFakeServer
    except ImportError:
        print(MISSING, file=sys.stderr)
        return USAGE_ERROR
    try:
        server = TcpFakeServer((options.host, options.port))
    except OSError as error:
        address = f"{options.host}:{options.port}"
        print(f"dispatcher.local.broker: cannot listen on {address}: {error.strerror}", file=sys.stderr)
        return USAGE_ERROR
    # A client that stays connected must not keep the broker from ending.
    server.daemon_threads = True
    port = server.socket.getsockname()[1]
    _serve_until_signal(server, f"redis://{options.host}:{port}/0")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dispatcher.local.broker", description="Serve the Redis protocol from memory."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=6379, help="port; 0 takes a free one (default: 6379)")
    return parser.parse_args(arguments)


def _serve_until_signal(server: BaseServer, url: str) -> None:
    stop = threading.Event()

    def on_signal(_number: int, _frame: Any) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    thread = threading.Thread(target=server.serve_forever, name="broker")
    thread.start()
    try:
        print(f"embedded broker ready at {url}", flush=True)
        stop.wait()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    sys.exit(main())
