# SPDX-License-Identifier: Apache-2.0
"""The embedded broker as a process: what redis-py and a real Celery worker need of it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from celery import Celery

from tests.support.clusters import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.processes import ChildProcess

MODULE = "dispatcher.local.broker"
READY = "embedded broker ready"

CELERY_MODULE = """
import os
from celery import Celery
app = Celery("worked", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.broker_connection_retry_on_startup = True

@app.task(name="double")
def double(number):
    return 2 * number

@app.task(name="fail")
def fail():
    raise ValueError("meant to")
"""


def url_of(process: ChildProcess) -> str:
    (line,) = [line for line in process.log.read_text().splitlines() if line.startswith(READY)]
    return line.rsplit(" ", 1)[1]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    with started([sys.executable, "-m", MODULE, "--port", "0"], directory, READY) as process:
        yield url_of(process)


@pytest.fixture
def client(broker: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker, socket_timeout=10) as client:
        client.flushall()
        yield client


def test_a_list_is_waited_for(client: redis.Redis, broker: str) -> None:
    with redis.Redis.from_url(broker) as other:
        pusher = threading.Timer(0.2, lambda: other.lpush("second", b"binary \r\n\0"))
        pusher.start()
        assert client.brpop(["first", "second"], timeout=5) == (b"second", b"binary \r\n\0")
        pusher.join()


def test_waiting_for_a_list_ends(client: redis.Redis) -> None:
    began = time.monotonic()
    assert client.brpop(["nonesuch"], timeout=1) is None
    assert time.monotonic() - began >= 0.9


def test_messages_are_published(client: redis.Redis) -> None:
    with client.pubsub() as channel:
        channel.subscribe("news")
        assert channel.get_message(timeout=5)["type"] == "subscribe"
        client.publish("news", "hello")
        assert channel.get_message(timeout=5)["data"] == b"hello"


def test_a_pipeline_answers_in_order(client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(500):
            pipeline.lpush("queue", str(number))
        assert pipeline.execute() == list(range(1, 501))


def test_a_transaction_is_whole(client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipeline:
        pipeline.set("count", 1)
        pipeline.incr("count")
        pipeline.zadd("unacked_index", {"tag": 1.5})
        assert pipeline.execute() == [True, 2, 1]


def test_a_transaction_fails_after_a_change_from_outside(client: redis.Redis) -> None:
    with client.pipeline() as pipeline:
        pipeline.watch("watched")
        client.set("watched", "changed")
        pipeline.multi()
        pipeline.set("watched", "lost")
        with pytest.raises(redis.WatchError):
            pipeline.execute()
    assert client.get("watched") == b"changed"


def test_databases_are_apart(client: redis.Redis, broker: str) -> None:
    client.set("key", "zero")
    with redis.Redis.from_url(broker.rsplit("/", 1)[0] + "/1") as other:
        assert other.get("key") is None


def test_a_large_value(client: redis.Redis) -> None:
    client.set("large", b"x" * 1_000_000)
    assert client.get("large") == b"x" * 1_000_000


def test_a_celery_worker_works_on_it(broker: str, tmp_path: Path) -> None:
    (tmp_path / "worked.py").write_text(CELERY_MODULE)
    command = [sys.executable, "-m", "celery", "-A", "worked", "worker", "-c", "1", "-l", "INFO"]
    app = Celery("sender", broker=broker, backend=broker, set_as_current=False)
    with started(
        command, tmp_path, "ready.", env={**os.environ, "BROKER": broker, "PYTHONPATH": str(tmp_path)}
    ):
        exchange(app)
    # Results unsubscribe when they are collected, which needs the connections that the app closes.
    gc.collect()
    app.close()


def exchange(app: Celery) -> None:
    """Send tasks to a worker, and talk to it."""
    assert app.send_task("double", [21]).get(timeout=20) == 42
    failed = app.send_task("fail")
    with pytest.raises(ValueError, match="meant to"):
        failed.get(timeout=20)
    (replies,) = app.control.ping(timeout=5, limit=1)
    assert list(replies.values()) == [{"ok": "pong"}]
    revoked = app.send_task("double", [1], countdown=1)
    app.control.revoke(revoked.id)
    revoked.get(timeout=20, propagate=False)
    assert revoked.state == "REVOKED"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_on_a_signal_with_clients_connected(tmp_path: Path, number: signal.Signals) -> None:
    with started([sys.executable, "-m", MODULE, "--port", "0"], tmp_path, READY) as process:
        with redis.Redis.from_url(url_of(process)) as client:
            client.ping()
            process.popen.send_signal(number)
            assert process.popen.wait(10) == 0
        assert process.log.read_text().count("\n") == 1


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", MODULE, "--port", port]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"{MODULE}: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("module", "package", "arguments"),
    [
        (MODULE, "fakeredis", []),
        ("dispatcher.local.cluster", "starlette", ["--kubeconfig", "x"]),
        ("dispatcher.local.cluster", "uvicorn", ["--kubeconfig", "x"]),
    ],
)
def test_a_missing_package_is_told_in_one_line(
    tmp_path: Path, module: str, package: str, arguments: list[str]
) -> None:
    hide = f"import sys, runpy; sys.modules[{package!r}] = None; sys.argv[1:] = {arguments!r}; "
    run = f"runpy.run_module({module!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", hide + run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert package in done.stderr
    assert "airflow-hybrid-dispatcher[local]" in done.stderr
