# SPDX-License-Identifier: Apache-2.0
"""The table of launches is read and written by ``dispatcher.ledger`` alone."""

from __future__ import annotations

import re
from pathlib import Path

import dispatcher
import workers

TABLE = "dispatcher_launch"
STATEMENT = re.compile(
    rf"""
    ["'`]{TABLE}                                       # the table in a text
    | \b(select|insert|update|delete|query)\(\s*LaunchRow  # a statement on its row class
    | \bLaunchRow\(                                    # a new row
    """,
    re.VERBOSE,
)


def _sources():
    for package in (dispatcher, workers):
        yield from Path(package.__file__).parent.rglob("*.py")


def test_no_other_module_reads_or_writes_the_table():
    ledger = Path(dispatcher.__file__).parent / "ledger"
    outside = [path for path in _sources() if not path.is_relative_to(ledger)]
    texts = {path: path.read_text(encoding="utf-8") for path in outside}
    assert texts, "no source was looked at"
    assert [str(path) for path, text in texts.items() if STATEMENT.search(text)] == []


def test_the_ledger_is_what_the_pattern_finds():
    ledger = Path(dispatcher.__file__).parent / "ledger"
    found = {path.name for path in ledger.rglob("*.py") if STATEMENT.search(path.read_text(encoding="utf-8"))}
    assert {"models.py", "store.py", "0001_create_launch_table.py"} <= found
