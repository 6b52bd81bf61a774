# SPDX-License-Identifier: Apache-2.0
"""Airflow's own commands show us, and have nothing to say about us on stderr."""

from __future__ import annotations

import re

import pytest

from dispatcher import __version__
from dispatcher.provider import get_provider_info
from tests.support.commands import run_airflow_commands
from tests.support.environment import EXECUTOR

OPTIONS = get_provider_info()["config"]["dispatcher"]["options"]
COMMANDS = (
    "config list --section dispatcher --defaults --show-values",
    "providers list -o plain",
    "plugins -o plain",
)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("executor", [None, EXECUTOR], ids=["stock executor", "our executor"])
def test_airflow_shows_every_setting_the_provider_and_the_plugin(tmp_path, executor):
    env = {} if executor is None else {"AIRFLOW__CORE__EXECUTOR": executor}
    done = run_airflow_commands(*COMMANDS, home=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    for key, option in OPTIONS.items():
        assert re.search(rf"^# {key} = {re.escape(option['default'] or '')}$", done.stdout, re.MULTILINE), key
    assert re.search(rf"^airflow-hybrid-dispatcher .* {re.escape(__version__)}$", done.stdout, re.MULTILINE)
    assert re.search(r"^dispatcher .*airflow-hybrid-dispatcher==", done.stdout, re.MULTILINE)
    assert not re.search(r"dispatcher|\bworkers\b", done.stderr, re.IGNORECASE), done.stderr[-3000:]
