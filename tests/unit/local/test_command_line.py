# SPDX-License-Identifier: Apache-2.0
"""The commands of the local mode take no options: they say so, and start nothing."""

from __future__ import annotations

import pytest

from dispatcher.local import demo, up

COMMANDS = [pytest.param(demo, id="demo"), pytest.param(up, id="up")]


@pytest.fixture
def started(monkeypatch):
    """The bodies that a command would have run on a stack."""
    bodies: list[object] = []
    for command in (demo, up):
        monkeypatch.setattr(command, "run", lambda body: bodies.append(body) or 0)
    return bodies


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_shown_and_nothing_is_started(command, started, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    assert f"usage: python -m {command.__name__} [-h]" in capsys.readouterr().out
    assert started == []


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("argument", ["--port=8080", "now"])
def test_what_is_not_understood_starts_nothing(command, argument, started, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([argument])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {argument}" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize("command", COMMANDS)
def test_without_any_it_starts(command, started):
    assert command.main([]) == 0
    assert len(started) == 1
