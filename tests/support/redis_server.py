# SPDX-License-Identifier: Apache-2.0
"""A Redis server of a test's own, which may be stopped, hung and started again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
import redis

from tests.support import processes, services

START_SECONDS = 20


class RedisServer:
    """The server, in memory only, on a port that stays the same; use it as a context manager.

    :param folder: where it writes its log
    :param options: further options of the command
    :param password: what clients must know
    """

    def __init__(self, folder: Path, options: Sequence[str] = (), *, password: str | None = None) -> None:
        self._folder = folder
        self._options = [*options, "--requirepass", password] if password else list(options)
        self._credentials = f"default:{password}@" if password else ""
        self._port = processes.free_port()
        self._process: processes.ChildProcess | None = None

    @property
    def url(self) -> str:
        """Its address, as broker and as result back end."""
        return f"redis://{self._credentials}127.0.0.1:{self._port}/0"

    @property
    def port(self) -> int:
        """Its port."""
        return self._port

    def __enter__(self) -> Self:
        if shutil.which("redis-server") is None:
            if services.REQUIRE_VARIABLE in os.environ and "redis" in os.environ[services.REQUIRE_VARIABLE]:
                pytest.fail(
                    "redis is required, and there is no redis-server to start and stop", pytrace=False
                )
            pytest.skip("there is no redis-server to start and stop")
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers.

        :raises RuntimeError: it runs already; a second one could not have its port, and the first would stay
        """
        if self._process is not None:
            raise RuntimeError("this Redis runs already")
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self._port), "--save", ""]
        command += self._options
        self._process = processes.start(command, self._folder / "redis.log", os.environ, self._folder)
        self._process.wait_until(self._answers, START_SECONDS)

    def stop(self) -> None:
        """Kill it: connections are refused, and everything that it held is gone."""
        if self._process is not None:
            self._process.popen.kill()
            self._process.popen.wait()
            self._process = None

    def hang(self) -> None:
        """Let it accept connections and answer nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again; what it was sent meanwhile arrives."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
