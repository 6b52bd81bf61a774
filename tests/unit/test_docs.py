# SPDX-License-Identifier: Apache-2.0
"""The reference pages say what is so."""

from __future__ import annotations

from dispatcher.cli.definition import LAUNCHES_COMMANDS
from dispatcher.domain.lifecycle import LaunchState
from tests.support.configuration_page import PAGE, render


def test_the_page_of_the_settings_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m tests.support.configuration_page"


def test_the_page_of_the_commands_names_every_option_and_state():
    page = (PAGE.parent / "cli.md").read_text(encoding="utf-8")
    for command in LAUNCHES_COMMANDS:
        assert f"airflow dispatcher launches {command.name}" in page
        for argument in command.args:
            assert f"`{argument.flags[-1]}`" in page
    for state in LaunchState:
        assert f"`{state}`" in page
