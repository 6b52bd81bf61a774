# SPDX-License-Identifier: Apache-2.0
"""Ready lines of embedded services."""

from __future__ import annotations

import pytest

from dispatcher.local.processes import ChildProcess
from dispatcher.local.readiness import address_in_ready_line, answers, heart_beats


@pytest.mark.parametrize(
    ("output", "address"),
    [
        ("", None),
        ("starting\n", None),
        ("embedded broker ready at redis://127.0.0.1:7000/0\n", "redis://127.0.0.1:7000/0"),
        ("a warning\nembedded cluster ready at http://127.0.0.1:7001\nmore\n", "http://127.0.0.1:7001"),
    ],
)
def test_the_address_is_in_the_ready_line(tmp_path, output, address):
    log = tmp_path / "log"
    log.write_text(output)

    assert address_in_ready_line(ChildProcess("broker", None, log)) == address


def test_an_api_server_that_is_not_there_is_not_ready():
    assert not answers("http://127.0.0.1:1")
    assert not heart_beats("http://127.0.0.1:1", "scheduler")
