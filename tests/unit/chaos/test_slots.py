# SPDX-License-Identifier: Apache-2.0
"""How many slots an executor holds is read from what a scheduler dumps on SIGUSR2."""

from __future__ import annotations

from airflow.executors.base_executor import BaseExecutor

from tests.chaos.fleet import slots_in_dump

HEAD = "SIGUSR2 received, printing debug\n"
EMPTY = """\
12:00:00 [info] executor.queued_tasks (0)\n\t
12:00:00 [info] executor.queued_callbacks (0)\n\t
12:00:00 [info] executor.running (0)\n\t
"""


def test_nothing_is_held():
    assert slots_in_dump(HEAD + EMPTY) == 0


def test_what_is_queued_or_runs_is_held():
    full = EMPTY.replace("queued_callbacks (0)", "queued_callbacks (2)").replace(
        "running (0)", "running (11)"
    )
    assert slots_in_dump(HEAD + full) == 13


def test_the_last_dump_counts():
    full = EMPTY.replace("running (0)", "running (1)")
    assert slots_in_dump(HEAD + full + HEAD + EMPTY) == 0


def test_an_answer_that_is_not_complete_is_none():
    assert slots_in_dump("") is None
    assert slots_in_dump(EMPTY) is None
    assert slots_in_dump(HEAD + EMPTY.partition("executor.running")[0]) is None


def test_airflow_dumps_in_these_words(capsys):
    BaseExecutor().debug_dump()
    assert slots_in_dump(HEAD + capsys.readouterr().out) == 0
