# SPDX-License-Identifier: Apache-2.0
"""What stops the executor at its start, and what it only warns of: one line each, saying what to do."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from airflow.utils.session import create_session
from sqlalchemy import text

from dispatcher.domain.errors import ConfigurationError
from dispatcher.ledger.manager import DispatcherDBManager
from dispatcher.ledger.models import LedgerBase
from dispatcher.settings import FenceMode
from dispatcher.startup import FenceProbe, own_names
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")

NO_FENCE = b"<html>the UI answers every path</html>"
FENCE = json.dumps({"fence": "active", "mode": "presented", "version": "0"}).encode()


class Configuration:
    """As much of Airflow's configuration as the probe reads."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, section: str, key: str, **kwargs):
        if (section, key) == ("api", "base_url"):
            return self.address
        return kwargs.get("fallback")


@contextmanager
def api_server_that_says(body: bytes):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body if self.path == "/dispatcher/health" else b"")

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stopped_with(monkeypatch, **environment: str) -> str:
    for name, value in environment.items():
        monkeypatch.setenv(f"AIRFLOW__{name}", value)
    with pytest.raises(SystemExit) as stop:
        run.started_executor()
    message = str(stop.value)
    assert "\n" not in message
    assert message.startswith("HybridExecutor cannot start: ")
    return message


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ("{", ["[dispatcher] routes", "not valid JSON"]),
        ('[{"match": {"queu": "x"}, "backend": "celery"}]', ["rule 1", "match.queu"]),
        (
            '[{"match": {}, "backend": "celery"}, {"match": {}, "backend": "dask"}]',
            ["rule 2", "backend"],
        ),
    ],
)
def test_an_invalid_route_names_the_rule_and_the_key(monkeypatch, routes, words):
    message = stopped_with(monkeypatch, DISPATCHER__ROUTES=routes)

    assert all(word in message for word in words), message


def test_no_jwt_secret(monkeypatch):
    executor = run.MemoryExecutor(1)
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "")

    with pytest.raises(SystemExit, match=r"no JWT secret: set \[api_auth\] jwt_secret"):
        executor.start()


def test_no_migration():
    with create_session(scoped=False) as session:
        LedgerBase.metadata.drop_all(session.get_bind())
    try:
        with pytest.raises(SystemExit, match="run `airflow db migrate`"):
            run.MemoryExecutor(1).start()
    finally:
        with create_session(scoped=False) as session:
            LedgerBase.metadata.create_all(session.get_bind())


def test_a_migration_that_is_behind():
    version = text(f"UPDATE {DispatcherDBManager.version_table_name} SET version_num = :version")
    with create_session(scoped=False) as session:
        session.execute(version, {"version": "0000"})
    try:
        with pytest.raises(SystemExit, match="not up to date: run `airflow db migrate`"):
            run.MemoryExecutor(1).start()
    finally:
        with create_session(scoped=False) as session:
            session.execute(version, {"version": "0001"})


def test_a_missing_backend_is_one_warning_and_launches_for_it_wait(caplog):
    executor = run.MemoryExecutor(1)
    executor.kubernetes.missing = "no cluster: set [kubernetes_executor] config_file"
    with caplog.at_level(logging.WARNING, logger="dispatcher"):
        executor.start()

    lines = [record.getMessage() for record in caplog.records if record.name == "dispatcher.executor"]
    assert lines == [
        "Launches for kubernetes wait: no cluster: set [kubernetes_executor] config_file",
    ]


def test_an_api_server_without_the_plugin_stops_the_start_where_the_fence_is_required():
    with api_server_that_says(NO_FENCE) as address, pytest.raises(ConfigurationError, match="without the"):
        FenceProbe(Configuration(address), FenceMode.REQUIRED).check_at_start()


def test_an_api_server_without_the_plugin_is_a_warning_otherwise(caplog):
    with api_server_that_says(NO_FENCE) as address, caplog.at_level(logging.WARNING, logger="dispatcher"):
        FenceProbe(Configuration(address), FenceMode.PRESENTED).check_at_start()

    assert ["runs without the dispatcher's fence" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("mode", FenceMode)
def test_an_api_server_with_the_plugin_is_no_word(caplog, mode):
    with api_server_that_says(FENCE) as address, caplog.at_level(logging.WARNING, logger="dispatcher"):
        FenceProbe(Configuration(address), mode).check_at_start()

    assert caplog.messages == []


def test_an_api_server_that_is_away_stops_nothing(caplog):
    with api_server_that_says(FENCE) as address:
        pass
    with caplog.at_level(logging.WARNING, logger="dispatcher"):
        FenceProbe(Configuration(address), FenceMode.REQUIRED).check_at_start()

    assert ["does not answer ([Errno " in line for line in caplog.messages] == [True]


def test_the_names_of_an_executor():
    from airflow.executors.executor_loader import ExecutorLoader

    name = ExecutorLoader.get_default_executor_name()
    executor = run.MemoryExecutor(1)
    executor.name = name

    assert own_names(executor) == {"dispatcher.executor.HybridExecutor", "HybridExecutor", None}
    executor.name = None
    assert own_names(executor) is None


def test_making_an_executor_touches_nothing():
    from dispatcher.executor import HybridExecutor

    executor = HybridExecutor()
    assert executor.get_event_buffer() == {}
    executor.end()
