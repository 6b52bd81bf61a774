# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server that answers workers as an API server with the fence does.

It plays the contract ("What the fence answers", "Callback endpoints") without a database: a token is claimed
once, by one claimant, and ``supersede`` makes it old. A test may also fix the answer to a call.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

RUN_CONTEXT = {
    "dag_run": {
        "dag_id": "guarded",
        "run_id": "run",
        "logical_date": "2030-01-01T00:00:00Z",
        "data_interval_start": None,
        "data_interval_end": None,
        "run_after": "2030-01-01T00:00:00Z",
        "start_date": "2030-01-01T00:00:00Z",
        "end_date": None,
        "run_type": "manual",
        "state": "running",
        "consumed_asset_events": [],
        "partition_key": None,
    },
    "max_tries": 0,
    "should_retry": False,
}
EXECUTION_TOKEN = "header.payload.execution"


@dataclass(frozen=True)
class Request:
    """One request that the server was sent.

    :param call: last part of the path, with ``callback-`` before it under ``/dispatcher/``.
    :param headers: by lower-case name.
    :param body: decoded JSON, or ``None``.
    """

    call: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """What the server answers.

    :param status: 0 cuts the connection without an answer.
    :param body: sent as JSON; ``None`` sends no body.
    """

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def refusal(reason: str, status: int = 409) -> Answer:
    """Return the fence's refusal with this reason."""
    return Answer(status, {"detail": {"reason": reason, "message": f"refused: {reason}"}})


class FenceServer:
    """The server; use it as a context manager.

    :param with_plugin: without, ``/dispatcher/`` is answered as Airflow alone does.
    """

    def __init__(self, *, with_plugin: bool = True) -> None:
        self.with_plugin = with_plugin
        self.requests: list[Request] = []
        self.starts: list[Request] = []
        """Starts of callbacks by Airflow's own supervisor, which 3.3 does not make."""
        self.claims: dict[str, str] = {}
        self._superseded: dict[str, str] = {}
        self._fixed: dict[str, list[Answer]] = defaultdict(list)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """Return the URL of the execution API."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/execution/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def supersede(self, token: str, reason: str = "launch_superseded") -> None:
        """Refuse this token from now on."""
        self._superseded[token] = reason

    def fix(self, call: str, *answers: Answer) -> None:
        """Answer ``call`` with these in turn, before anything else is considered."""
        self._fixed[call] += answers

    def calls(self, call: str) -> list[Request]:
        """Return the requests of this call, in order."""
        return [request for request in list(self.requests) if request.call == call]

    def answer(self, request: Request) -> Answer:
        """Decide the answer to a request."""
        with self._lock:
            if request.call == "callback-start":
                self.starts.append(request)
                return self._judge(request)
            self.requests.append(request)
            if self._fixed[request.call]:
                return self._fixed[request.call].pop(0)
            return self._judge(request)

    def _judge(self, request: Request) -> Answer:
        if request.path.startswith("/dispatcher/") and not self.with_plugin:
            return Answer(405, {"detail": "Method Not Allowed"})
        token = request.headers.get("airflow-launch-token", "")
        fenced = {"run", "state", "heartbeat", "callback-run", "callback-state"}
        if request.call in fenced and token in self._superseded:
            return refusal(self._superseded[token])
        if request.call in {"run", "callback-run", "callback-start"}:
            claimant = request.headers.get("airflow-launch-claimant", request.path)
            if self.claims.setdefault(token or request.path, claimant) != claimant:
                return refusal("launch_consumed")
        return self._accept(request.call)

    def _accept(self, call: str) -> Answer:
        refreshed = {"Refreshed-API-Token": EXECUTION_TOKEN}
        accepted = {
            "run": Answer(200, RUN_CONTEXT, refreshed),
            "callback-run": Answer(204, None, refreshed),
            "callback-start": Answer(204, None, refreshed),
            "rtif": Answer(201, {"message": "set"}),
        }
        return accepted.get(call, Answer(204))


def _handler(server: FenceServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = urlsplit(self.path).path
            call = path.rpartition("/")[2]
            if path.startswith("/dispatcher/"):
                call = f"callback-{call}"
            elif path.startswith("/execution/callbacks/"):
                call = "callback-start"
            answer = server.answer(
                Request(
                    call=call,
                    method=self.command,
                    path=path,
                    headers={name.lower(): value for name, value in self.headers.items()},
                    body=json.loads(content) if content else None,
                )
            )
            if answer.status == 0:
                self.close_connection = True
                return
            body = b"" if answer.body is None else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            if body:
                self.send_header("Content-Type", "application/json")
            if answer.status != 204:
                self.send_header("Content-Length", str(len(body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            """Keep the test output free of access lines."""

    return Handler
