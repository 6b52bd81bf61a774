# SPDX-License-Identifier: Apache-2.0
"""``python -m workers.health`` against brokers and workers; that of a real worker is in the module of C7."""

from __future__ import annotations

import os
import re
import subprocess
import threading

import pytest
from celery import Celery
from kombu import Connection

from tests.support.celery_worker import PLAIN, embedded_broker
from tests.support.processes import free_port
from workers import health
from workers.celery_setup import is_taken
from workers.consumption import COMMAND

NODE = "celery@played"


@pytest.fixture(scope="module")
def broker():
    with embedded_broker() as url:
        yield url


@pytest.fixture
def node(broker):
    """Play a worker that answers and never takes a message."""
    told = {"consumes": True, "queues": ["default"], "received": 1, "held": 0, "prefetch": 2}
    app = Celery("played", broker=broker, set_as_current=False)
    stop, listening = threading.Event(), threading.Event()

    def answer():
        with Connection(broker) as connection:
            played = app.control.mailbox(connection).Node(
                NODE,
                handlers={COMMAND: lambda _, **__: told, "ping": lambda _, **__: {"ok": "pong"}},
                state=object(),
                channel=connection.channel(),
            )
            with played.listen(), connection.Producer():
                while not stop.is_set():
                    try:
                        connection.drain_events(timeout=0.1)
                    except TimeoutError:
                        listening.set()

    thread = threading.Thread(target=answer)
    thread.start()
    assert listening.wait(10)
    yield told
    stop.set()
    thread.join()
    app.close()


@pytest.fixture
def check(broker, monkeypatch, capsys):
    def run(*options, url=broker, hostname=NODE):
        app = Celery("checked", broker=url, set_as_current=False)
        monkeypatch.setattr("airflow.providers.celery.executors.celery_executor_utils.app", app)
        code = health.main(["--hostname", hostname, "--timeout", "2", "--idle", "0.1", *options])
        app.close()
        return code, capsys.readouterr().out

    return run


def test_a_worker_that_answers_and_takes_nothing_is_red(broker, node, check):
    assert check() == (0, f"{NODE} consumes default\n")
    with Connection(broker) as connection:
        connection.SimpleQueue("default").put("waits")
        try:
            code, line = check()
        finally:
            connection.SimpleQueue("default").clear()
    assert code == 1
    assert line == f"{NODE} takes nothing from default though 1 messages wait and it has room\n"


def test_a_worker_that_is_not_there_is_red(broker, check):
    assert check(hostname="celery@nobody", url=broker) == (1, "celery@nobody does not answer\n")


@pytest.mark.parametrize(
    ("options", "code"), [((), 1), (("--broker-may-be-away",), 0)], ids=["red", "tolerated"]
)
def test_fault_51_a_broker_that_is_away_is_named_without_its_password(check, options, code):
    port = free_port()
    told = check(*options, url=f"redis://user:marked@127.0.0.1:{port}/0")
    assert told[0] == code
    address = re.escape(f"redis://user:**@127.0.0.1:{port}/0")
    assert re.fullmatch(rf"{NODE} is not known: the broker {address} does not answer \(\w+\)\n", told[1])


@pytest.mark.slow
def test_a_worker_whose_name_is_taken_does_not_start(broker, node):
    env = {**os.environ, "AIRFLOW__CELERY__BROKER_URL": broker, "AIRFLOW__CELERY__RESULT_BACKEND": broker}
    done = subprocess.run(
        [*PLAIN, "--skip-serve-logs", "-n", NODE],
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1
    assert f"a worker with the name {NODE} is running already" in done.stderr


def test_a_name_that_nobody_has_is_free(broker, node):
    app = Celery("checked", broker=broker, set_as_current=False)
    assert is_taken(app, NODE)
    assert not is_taken(app, "celery@nobody")
    app.close()


def test_where_the_broker_is_away_no_name_is_taken():
    app = Celery("checked", broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False)
    assert not is_taken(app, NODE)
    app.close()
