# SPDX-License-Identifier: Apache-2.0
"""The proxy of the tests does what its faults say, per verb and count: in front of a server of its own."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import urllib3
import yaml
from urllib3.exceptions import HTTPError

from tests.support import fault_proxy
from tests.support.fault_proxy import FaultProxy

EVENT = b'{"type": "ADDED", "object": {}}\n'


@pytest.fixture
def server():
    """Yield a server that notes what it gets, and its address."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.command)
            body = EVENT if "watch=True" in self.path else b'{"kind": "Pod"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_args) -> None:
            """Write nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield SimpleNamespace(seen=seen, url=f"http://127.0.0.1:{httpd.server_address[1]}")
    httpd.shutdown()
    httpd.server_close()
    thread.join(5)


@pytest.fixture
def proxy(server, tmp_path):
    with urllib3.PoolManager() as pool:
        client = SimpleNamespace(
            configuration=SimpleNamespace(host=server.url),
            rest_client=SimpleNamespace(pool_manager=pool),
            update_params_for_auth=lambda *_args: None,
        )
        opened = FaultProxy(client, tmp_path / "kubeconfig.yaml")
        opened.start()
        yield opened
        opened.stop()


@pytest.fixture
def call(proxy):
    """Return a function that calls through the proxy."""
    (cluster,) = yaml.safe_load(proxy.kubeconfig_path.read_text())["clusters"]
    with urllib3.PoolManager() as pool:
        yield lambda method, path, **more: pool.request(
            method, cluster["cluster"]["server"] + path, retries=False, **more
        )


def test_without_a_fault_it_passes_everything_on(call, server, proxy):
    assert call("GET", "/pods").json() == {"kind": "Pod"}
    assert call("GET", "/pods?watch=True").data == EVENT
    assert server.seen == ["GET", "GET"]
    assert (proxy.count("GET", "/pods"), proxy.count("GET", "watch"), proxy.count("POST", "")) == (2, 1, 0)


@pytest.mark.parametrize("status", [410, 429, 500, 503])
def test_an_answer_of_its_own_per_verb_and_count(call, server, proxy, status):
    proxy.on("POST", "/pods", fault_proxy.answer(status, **{"Retry-After": "7"}), times=2)
    assert call("GET", "/pods").status == 200
    for _ in range(2):
        refused = call("POST", "/pods")
        assert (refused.status, refused.headers["Retry-After"]) == (status, "7")
        assert json.loads(refused.data)["code"] == status
    assert call("POST", "/pods").status == 200
    assert server.seen == ["GET", "POST"]


@pytest.mark.parametrize(("fault", "arrives"), [(fault_proxy.reset, False), (fault_proxy.swallow, True)])
def test_a_connection_that_is_closed_before_or_after_the_server_did_it(call, server, proxy, fault, arrives):
    proxy.on("DELETE", "/pods/", fault)
    with pytest.raises(HTTPError):
        call("DELETE", "/pods/a")
    assert server.seen == (["DELETE"] if arrives else [])
    assert call("DELETE", "/pods/a").status == 200


def test_an_answer_that_is_delayed(call, server, proxy):
    opened = threading.Event()
    proxy.on("GET", "/pods", fault_proxy.delay_answer(opened), times=None)
    with pytest.raises(HTTPError):
        call("GET", "/pods", timeout=0.2)
    opened.set()
    assert call("GET", "/pods").json() == {"kind": "Pod"}
    assert server.seen == ["GET", "GET"]


def test_a_watch_that_falls_silent(call, proxy):
    proxy.on("GET", "watch=True", fault_proxy.silence)
    with pytest.raises(HTTPError):
        call("GET", "/pods?watch=True", timeout=0.2)


def test_a_watch_that_is_cut_in_the_middle_of_a_line(call, proxy):
    proxy.on("GET", "watch=True", fault_proxy.cut_in_a_line)
    response = call("GET", "/pods?watch=True", preload_content=False)
    got = response.read(len(EVENT) // 2)
    with pytest.raises(HTTPError):
        response.read()
    assert EVENT.startswith(got)
    assert 0 < len(got) < len(EVENT)


def test_a_watch_whose_version_is_too_old(call, proxy):
    proxy.on("GET", "watch=True", fault_proxy.expired_event)
    event = call("GET", "/pods?watch=True").json()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_an_answer_that_is_no_json(call, server, proxy):
    proxy.on("GET", "/pods", fault_proxy.garbage)
    with pytest.raises(ValueError, match="Expecting value"):
        call("GET", "/pods").json()
    assert server.seen == ["GET"]
