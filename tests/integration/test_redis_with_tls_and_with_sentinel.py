# SPDX-License-Identifier: Apache-2.0
"""Redis over TLS and Redis behind Sentinel: options are read as the stock provider reads them.

What is sent is what a worker of the stock provider's app finds, and what it stores is what is observed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
import redis
from airflow.providers.celery.executors.celery_executor_utils import create_celery_app
from redis.sentinel import Sentinel

from dispatcher.backends.base import Observation, Sent
from tests.support import processes
from tests.support.backend_harness import eventually, make_submission
from tests.support.celery_backend import make_backend, make_conf
from tests.support.redis_server import START_SECONDS, RedisServer

pytestmark = pytest.mark.needs("redis")

MASTER = "dispatcher"


def assert_sent_and_observed(broker, results):
    """Send a batch, find it as a worker does, store a result, and observe it."""
    conf = make_conf(broker, results, operation_timeout="5.0")
    backend = make_backend(conf)
    backend.start("1")
    stock = create_celery_app(conf)
    batch = [make_submission() for _ in range(2)]
    try:
        assert backend.problem() is None
        sent = backend.submit(batch)
        assert sent == {one.token: Sent(one.token) for one in batch}
        with stock.connection_for_read() as connection:
            queue = connection.SimpleQueue("default", no_ack=True)
            taken = [queue.get(timeout=10).headers["id"] for _ in batch]
            queue.close()
        assert taken == [one.token for one in batch]
        stock.backend.mark_as_failure(batch[0].token, RuntimeError("the body failed"))
        told = eventually(backend.observe, "the result is observed")
        assert told == [
            Observation(batch[0].token, ok=False, reason="RuntimeError: the body failed", anonymous=True)
        ]
    finally:
        backend.stop()
        stock.backend.client.connection_pool.disconnect()
        stock.close()


@pytest.fixture
def tls(tmp_path):
    """Yield the port of a server that speaks TLS, and the file with its certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    port = processes.free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    options += ["--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "optional"]
    try:
        server = RedisServer(tmp_path, options).__enter__()
    except processes.ProcessEndedError as exc:
        if "tls" not in str(exc).lower():
            raise
        pytest.skip("redis-server was built without TLS")
    yield port, certificate
    server.stop()


def test_redis_over_tls(tls, monkeypatch):
    port, certificate = tls
    for key, value in {
        "SSL_ACTIVE": "True",
        "SSL_MUTUAL_TLS": "False",
        "SSL_CACERT": str(certificate),
    }.items():
        monkeypatch.setenv(f"AIRFLOW__CELERY__{key}", value)
    url = f"rediss://127.0.0.1:{port}/0"

    assert_sent_and_observed(url, f"{url}?ssl_cert_reqs=required&ssl_ca_certs={certificate}")


def test_a_certificate_of_somebody_else_is_not_believed(tls, monkeypatch):
    port, _ = tls
    for key, value in {"SSL_ACTIVE": "True", "SSL_MUTUAL_TLS": "False"}.items():
        monkeypatch.setenv(f"AIRFLOW__CELERY__{key}", value)
    url = f"rediss://127.0.0.1:{port}/0"
    backend = make_backend(make_conf(url, url, operation_timeout="5.0"))

    problem = backend.problem()
    backend.stop()

    assert problem is not None
    assert "certificate" in problem.lower()


@pytest.fixture
def sentinel(tmp_path):
    """Yield the port of a Sentinel that watches over one server."""
    folder = tmp_path / "server"
    folder.mkdir()
    with RedisServer(folder) as server:
        port = processes.free_port()
        configuration = tmp_path / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind 127.0.0.1\nsentinel monitor {MASTER} 127.0.0.1 {server.port} 1\n"
        )
        command = ["redis-server", str(configuration), "--sentinel"]
        process = processes.start(command, tmp_path / "sentinel.log", os.environ, tmp_path)
        try:
            process.wait_until(lambda: _knows_the_master(port), START_SECONDS)
            yield port
        finally:
            process.stop()


def _knows_the_master(port):
    try:
        return bool(Sentinel([("127.0.0.1", port)], socket_timeout=1).discover_master(MASTER))
    except redis.RedisError:
        return False


def test_redis_behind_sentinel(sentinel, monkeypatch):
    for section in ("BROKER", "RESULT_BACKEND"):
        options = {"MASTER_NAME": MASTER, "SENTINEL_KWARGS": json.dumps({"socket_timeout": 5})}
        for key, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__CELERY_{section}_TRANSPORT_OPTIONS__{key}", value)
    # The first address is of nobody: the others are asked.
    url = f"sentinel://127.0.0.1:{processes.free_port()}/0;sentinel://127.0.0.1:{sentinel}/0"

    assert_sent_and_observed(url, url)
