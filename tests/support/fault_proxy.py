# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy in front of the API server that misbehaves as a test tells it to.

Clients talk to it over plain HTTP and without credentials; it has its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes.client import ApiClient

Fault = Callable[["Exchange"], None]


@dataclass
class Rule:
    """What happens to requests of one kind, so many times.

    :param method: verb
    :param part: is in the path with its query
    :param fault: what is done instead of passing the request on
    :param times: how often; None for always
    """

    method: str
    part: str
    fault: Fault
    times: int | None = 1

    def fits(self, exchange: Exchange) -> bool:
        return self.times != 0 and exchange.method == self.method and self.part in exchange.path


@dataclass
class Exchange:
    """One request, and the ways to answer it."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    handler: BaseHTTPRequestHandler
    proxy: FaultProxy

    def forward(self) -> Any:
        """Let the API server answer, and return its response unread."""
        return self.proxy.send(self)

    def begin(self, status: int, headers: dict[str, str], length: int | None) -> None:
        """Begin the answer; without a length it is chunked."""
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name, value)
        if length is None:
            self.handler.send_header("Transfer-Encoding", "chunked")
        else:
            self.handler.send_header("Content-Length", str(length))
        self.handler.end_headers()

    def chunk(self, data: bytes) -> None:
        """Write one chunk of a chunked answer; the empty one ends it."""
        self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.handler.wfile.flush()

    def hang_up(self) -> None:
        """Close the connection as it is."""
        self.handler.close_connection = True
        self.handler.connection.close()

    def pass_on(self, change: Callable[[bytes], bytes | None] = lambda data: data) -> None:
        """Forward the request and pass the answer on as it comes.

        :param change: from what came to what is passed on; None to hang up there
        """
        response = self.forward()
        kept = {"content-type": response.headers.get("content-type", "application/json")}
        if "watch=True" not in self.path:
            data = response.read()
            self.begin(response.status, kept, len(data))
            self.handler.wfile.write(data)
            return
        self.begin(response.status, kept, None)
        self.proxy.streams.append(response)
        try:
            for data in response.stream(65536):
                changed = change(data)
                if changed is None:
                    self.hang_up()
                    return
                self.chunk(changed)
            self.chunk(b"")
        finally:
            response.close()


@dataclass
class FaultProxy:
    """The proxy.

    :param client: a client of the cluster, whose credentials are used
    :param kubeconfig_path: a file that is written for those who talk through this proxy
    :param as_user: impersonate this user, for whom the cluster has no role
    """

    client: ApiClient
    kubeconfig_path: Path
    as_user: str | None = None
    rules: list[Rule] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def on(self, method: str, part: str, fault: Fault, times: int | None = 1) -> Rule:
        """Add a rule and return it; of several that fit, the first counts."""
        rule = Rule(method, part, fault, times)
        self.rules.append(rule)
        return rule

    def count(self, method: str, part: str) -> int:
        """Return how many such requests came."""
        return sum(1 for verb, path in self.seen if verb == method and part in path)

    def start(self) -> None:
        """Listen on a free port of this machine, and write the kubeconfig file."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                exchange = Exchange(self.command, self.path, body, dict(self.headers), self, proxy)
                proxy.treat(exchange)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_any  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Write nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Connections are cut here on purpose."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.kubeconfig_path.write_text(kubeconfig_of(url), encoding="utf-8")

    @property
    def kubeconfig(self) -> str:
        """The path of the kubeconfig file that leads here."""
        return str(self.kubeconfig_path)

    def treat(self, exchange: Exchange) -> None:
        """Answer one request, as the first rule that fits says."""
        self.seen.append((exchange.method, exchange.path))
        for rule in self.rules:
            if rule.fits(exchange):
                if rule.times is not None:
                    rule.times -= 1
                rule.fault(exchange)
                return
        exchange.pass_on()

    def send(self, exchange: Exchange) -> Any:
        """Send a request on to the API server."""
        headers = {name: value for name, value in exchange.headers.items() if name.lower() != "host"}
        self.client.update_params_for_auth(headers, [], ["BearerToken"])
        if self.as_user:
            headers["Impersonate-User"] = self.as_user
        return self.client.rest_client.pool_manager.request(
            exchange.method,
            self.client.configuration.host + exchange.path,
            body=exchange.body or None,
            headers=headers,
            preload_content=False,
        )

    def stop(self) -> None:
        """End every connection and thread."""
        self.stopping.set()
        for stream in self.streams:
            with suppress(OSError, RuntimeError, ValueError):  # it may have ended
                stream.shutdown()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def kubeconfig_of(server: str, token: str | None = None) -> str:
    """Return a kubeconfig for a server.

    :param token: what it asks for, if anything
    """
    return yaml.safe_dump(
        {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token} if token else {}}],
            "current-context": "c",
        }
    )


def answer(status: int, message: str = "injected", **headers: str) -> Fault:
    """Answer without asking the API server."""

    def fault(exchange: Exchange) -> None:
        body = json.dumps({"kind": "Status", "code": status, "message": message}).encode()
        exchange.begin(status, {"content-type": "application/json", **headers}, len(body))
        exchange.handler.wfile.write(body)

    return fault


def garbage(exchange: Exchange) -> None:
    """Let the API server do it, and answer with something that is no JSON, as a proxy in between may."""
    if "watch=True" not in exchange.path:
        exchange.forward().read()
    body = b"<html>it works</html>\n"
    exchange.begin(200, {"content-type": "text/html"}, len(body))
    exchange.handler.wfile.write(body)


def swallow(exchange: Exchange) -> None:
    """Let the API server do it, and close the connection without its answer."""
    exchange.forward().read()
    exchange.hang_up()


def reset(exchange: Exchange) -> None:
    """Close the connection; the API server hears nothing."""
    exchange.hang_up()


def delay_answer(opened: threading.Event) -> Fault:
    """Let the API server do it, and answer when ``opened`` is set."""

    def fault(exchange: Exchange) -> None:
        response = exchange.forward()
        data = response.read()
        while not opened.wait(0.05):
            if exchange.proxy.stopping.is_set():
                exchange.hang_up()
                return
        exchange.begin(response.status, {"content-type": "application/json"}, len(data))
        exchange.handler.wfile.write(data)

    return fault


def silence(exchange: Exchange) -> None:
    """Accept, begin an answer, and say no more until the proxy stops."""
    exchange.begin(200, {"content-type": "application/json"}, None)
    exchange.proxy.stopping.wait(60)
    exchange.hang_up()


def expired_event(exchange: Exchange) -> None:
    """Answer a watch with an ERROR event of code 410."""
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    exchange.begin(200, {"content-type": "application/json"}, None)
    exchange.chunk(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
    exchange.chunk(b"")


def cut_in_a_line(exchange: Exchange) -> None:
    """Pass a watch on until its first event, and cut the connection in the middle of that."""

    def half(data: bytes) -> bytes | None:
        exchange.chunk(data[: len(data) // 2])
        return None

    exchange.pass_on(half)
