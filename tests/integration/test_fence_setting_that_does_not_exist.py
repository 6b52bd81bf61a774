# SPDX-License-Identifier: Apache-2.0
"""An API server whose ``[dispatcher] fence`` has a value that does not exist says so, and serves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from dispatcher.fence.middleware import FenceMiddleware

ROOT = Path(__file__).parents[2]
PROBLEM = "[dispatcher] fence is 'strict'; it must be one of: presented, required"


@pytest.fixture
def client(monkeypatch):
    """A client of an application that the fence stands in front of, which its server has not started."""
    monkeypatch.setenv("AIRFLOW__DISPATCHER__FENCE", "strict")
    app = FastAPI()
    app.add_middleware(FenceMiddleware)

    @app.get("/anything")
    def anything():
        return "served"

    return TestClient(app)


def test_the_server_ends_at_its_start_and_says_why(airflow_db):
    finished = subprocess.run(
        [sys.executable, "-m", "uvicorn", "dispatcher.fence.asgi:app", "--port", "0"],
        env={**os.environ, "AIRFLOW__DISPATCHER__FENCE": "strict"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    told = finished.stdout + finished.stderr
    assert finished.returncode not in (0, None), told
    assert PROBLEM in told
    assert "Application startup failed. Exiting." in told
    assert "Traceback" not in told


def test_a_server_that_asks_for_no_start_is_told_with_every_answer(client, caplog):
    for _ in range(2):
        answer = client.get("/anything")
        assert answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
        assert answer.json() == {"detail": PROBLEM}
    (line,) = [one for one in caplog.records if one.levelname == "CRITICAL"]
    assert line.getMessage() == f"The API server cannot serve with the fence: {PROBLEM}"


def test_a_websocket_is_closed(client):
    with pytest.raises(WebSocketDisconnect) as caught, client.websocket_connect("/anything"):
        pass
    assert caught.value.code == 1011


def test_with_a_value_that_exists_it_serves(client, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__FENCE", "required")
    with client:
        assert client.get("/anything").json() == "served"
