# SPDX-License-Identifier: Apache-2.0
"""The probe, the plugin, and the entry point for API servers that load no plugins."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx
import pytest
from starlette.testclient import TestClient

from dispatcher import __version__
from tests.support import processes
from tests.support.fence_calls import assert_refused, guarded, queued_launch, requeue

START_SECONDS = 300
ACTIVE = {"fence": "active", "mode": "presented", "version": __version__}


def test_the_probe_answers_without_authentication(execution_client):
    answer = execution_client.get("/dispatcher/health")

    assert (answer.status_code, answer.json()) == (200, ACTIVE)


def test_nothing_else_is_served(execution_client):
    for path in ("/docs", "/openapi.json", "/callbacks", "/"):
        assert execution_client.get(f"/dispatcher{path}").status_code == 404


def test_an_execution_only_server_of_airflow_has_no_fence(airflow_db):
    """Why there is an entry point of our own: Airflow loads plugins for its ``core`` application alone."""
    from airflow.api_fastapi.app import create_app

    client = TestClient(create_app(apps="execution"))

    assert client.get("/dispatcher/health").status_code == 404


@pytest.fixture
def entry_point(airflow_home):
    """Yield the URL of the execution API as ``dispatcher.fence.asgi`` serves it."""
    port = processes.free_port()
    command = [sys.executable, "-m", "uvicorn", "dispatcher.fence.asgi:app", "--port", str(port)]
    process = processes.start(command, airflow_home / f"asgi-{port}.log", os.environ, cwd=airflow_home)
    try:
        process.wait_until(lambda: answers(f"http://127.0.0.1:{port}/execution/health"), START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


def answers(url):
    try:
        return httpx.get(url).is_success
    except httpx.HTTPError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_our_entry_point_has_it(db_session, entry_point):
    assert httpx.get(f"{entry_point}/dispatcher/health", timeout=60).json() == ACTIVE
    first = queued_launch(db_session)
    second = requeue(db_session, first.subject_id)

    with httpx.Client(base_url=entry_point, timeout=60) as client:
        assert_refused(guarded(client, first).run(), "launch_superseded")
        assert guarded(client, second).run().status_code == 200


def test_the_plugin_is_light():
    """Airflow loads it in every process: workers and schedulers need nothing of what it stands for."""
    heavy = (
        "fastapi",
        "starlette",
        "jwt",
        "airflow.models.taskinstance",
        "dispatcher.ledger",
        "pydantic_core",
    )
    code = (
        "import sys, airflow.plugins_manager; before = set(sys.modules); "
        "import dispatcher.fence.plugin; new = set(sys.modules) - before; "
        f"print(*[name for name in {heavy!r} if name in new])"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "", "")


def test_airflow_lists_the_plugin():
    from airflow.plugins_manager import get_plugin_info

    (info,) = [info for info in get_plugin_info() if info["name"] == "dispatcher"]

    assert [app["url_prefix"] for app in info["fastapi_apps"]] == ["/dispatcher"]
    assert info["fastapi_root_middlewares"][0]["middleware"] == "dispatcher.fence.middleware.FenceMiddleware"
