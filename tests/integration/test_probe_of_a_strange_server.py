# SPDX-License-Identifier: Apache-2.0
"""The probe at start, where something that is no API server answers at its address."""

from __future__ import annotations

import socket
import threading

import pytest
from airflow.configuration import conf

from dispatcher.settings import FenceMode
from dispatcher.startup import FenceProbe


@pytest.fixture
def babbler():
    """Yield the port of a server that speaks no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once() -> None:
            try:
                connection, _ = server.accept()
            except OSError:  # nobody asked
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(b"+PONG\r\n")

        thread = threading.Thread(target=answer_once, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_it_warns_in_one_line_without_the_credentials_of_the_address(babbler, monkeypatch, caplog):
    address = f"http://user:s3cret@127.0.0.1:{babbler}/execution/"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", address)

    FenceProbe(conf, FenceMode.REQUIRED).check_at_start()

    (warning,) = [record.getMessage() for record in caplog.records if record.name == "dispatcher.startup"]
    assert f"http://127.0.0.1:{babbler} does not answer" in warning
    assert "s3cret" not in warning
