# SPDX-License-Identifier: Apache-2.0
"""Real Airflow API servers on the metadata database of this test process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support import processes, stock

START_SECONDS = 300
"""How long a server may take to answer. A busy machine needs minutes for several workers, so a test that may
be the first to ask for such a server raises its own limit: ``@pytest.mark.timeout(400)``."""


@dataclass(frozen=True)
class ApiServer:
    """An API server that answers.

    :param url: its address, without a slash at the end.
    :param process: its process, for its id and its log.
    """

    url: str
    process: processes.ChildProcess

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """Return a client of the execution API; the caller closes it.

        :param token: JWT to present.
        :param headers: further headers, ``_`` in their names meaning ``-``.
        """
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=f"{self.url}/execution", headers=sent, timeout=30)


class ApiServers:
    """Starts API servers on demand, one per distinct set of parameters, and stops them all at the end.

    :param home: Airflow's home; logs go there.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._servers: dict[tuple[object, ...], ApiServer] = {}
        self._stock_python: Path | None = None

    def __call__(
        self,
        *,
        with_plugin: bool = True,
        workers: int = 1,
        apps: str = "all",
        env: Mapping[str, str] | None = None,
    ) -> ApiServer:
        """Return an API server with these parameters, started now if none runs.

        :param with_plugin: whether this distribution is installed where the server runs.
        :param workers: number of worker processes.
        :param apps: what ``airflow api-server --apps`` takes.
        :param env: further environment variables.
        :raises tests.support.processes.ProcessEndedError: the server does not get ready.
        """
        key = (with_plugin, workers, apps, tuple(sorted((env or {}).items())))
        server = self._servers.get(key)
        if server is None or not server.process.running():
            server = self._start(with_plugin, workers, apps, env or {})
            self._servers[key] = server
        return server

    def stop(self) -> None:
        """Stop every server that was started."""
        for server in self._servers.values():
            server.process.ask_to_end()
        for server in self._servers.values():
            server.process.stop()
        self._servers.clear()

    def stock_python(self) -> Path:
        """Return the interpreter of an environment without this distribution."""
        if self._stock_python is None:
            self._stock_python = stock.make_stock_environment(self._home / "stock-python")
        return self._stock_python

    def _start(self, with_plugin: bool, workers: int, apps: str, env: Mapping[str, str]) -> ApiServer:
        port = processes.free_port()
        python = sys.executable if with_plugin else str(self.stock_python())
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
        if not with_plugin:
            environment.pop("PYTHONPATH", None)
            environment["AIRFLOW__CORE__EXECUTOR"] = env.get("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
        command = [python, "-m", "airflow", "api-server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", str(workers), "--apps", apps]
        log = self._home / f"api-server-{port}.log"
        # Not in the checkout: `python -m` puts the working directory first on the import path.
        process = processes.start(command, log, environment, cwd=self._home)
        url = f"http://127.0.0.1:{port}"
        health = f"{url}/execution/health" if apps == "execution" else f"{url}/api/v2/version"
        try:
            process.wait_until(lambda: _answers(health), START_SECONDS)
        except BaseException:  # the test's own time limit included
            process.stop()
            raise
        return ApiServer(url, process)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
