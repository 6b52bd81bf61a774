# SPDX-License-Identifier: Apache-2.0
"""How launches are shown to people and to scripts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from dispatcher.cli import table
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from tests.support.launches import build_launch

ISSUED = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
TOKEN = "0a1b2c3d-0000-4000-8000-000000000001"
COLUMNS = [
    "sequence", "kind", "subject", "backend", "queue", "token", "state",
    "issued", "submitted", "claimed", "ended", "reason",
]  # fmt: skip


def _launch(**fields):
    values = {
        "sequence": 7,
        "token": TOKEN,
        "dag_id": "etl",
        "task_id": "load",
        "run_id": "r1",
        "issued_at": ISSUED,
    }
    return build_launch(**values | fields)


ENDED = _launch(
    state=LaunchState.FAILED,
    backend=BackendName.KUBERNETES,
    queue="gpu",
    submitted_at=ISSUED + timedelta(seconds=0.25),
    claimed_at=ISSUED + timedelta(seconds=1.5),
    ended_at=ISSUED + timedelta(minutes=10),
    end_reason="exit code 1 [base]",
)


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({}, "etl/load@r1"),
        ({"map_index": 0}, "etl/load[0]@r1"),
        ({"map_index": 12}, "etl/load[12]@r1"),
        ({"kind": LaunchKind.CALLBACK, "subject_id": "5f"}, "5f"),
    ],
)
def test_the_subject(fields, subject):
    assert table.subject_of(_launch(**fields)) == subject


def test_exact_times_are_in_utc():
    row = table.exact_row(_launch(submitted_at=ISSUED.astimezone(timezone(timedelta(hours=2)))))
    assert list(row) == COLUMNS
    assert row["issued"] == row["submitted"] == "2026-01-02T03:04:05.600000+00:00"
    assert (row["claimed"], row["ended"], row["reason"]) == (None, None, None)


def test_readable_times_count_from_the_issue():
    row = table.readable_row(ENDED)
    assert list(row) == COLUMNS
    assert row["issued"] == "2026-01-02 03:04:05"
    assert (row["submitted"], row["claimed"], row["ended"]) == ("+0.2 s", "+1.5 s", "+600.0 s")
    assert table.readable_row(_launch())["ended"] == "-"


def test_a_wide_table_has_every_column(capsys):
    table.print_launches([ENDED, _launch(sequence=8)])
    head, _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert [name.strip() for name in head.split("|")] == [
        *COLUMNS[:7], "issued (UTC)", "submitted", "claimed", "ended", "reason",
    ]  # fmt: skip
    assert [cell.strip() for cell in first.split("|")] == list(table.readable_row(ENDED).values())
    assert TOKEN in second


def test_a_narrow_terminal_gets_the_short_table(capsys, monkeypatch):
    monkeypatch.setattr("airflow.cli.simple_table.is_tty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    table.print_launches([ENDED])
    row = table.readable_row(ENDED)
    head, _, first, *_ = capsys.readouterr().out.splitlines()
    assert [name.strip() for name in head.split("|")] == [
        "sequence", "subject", "backend", "queue", "token", "state", "claimed", "ended", "reason",
    ]  # fmt: skip
    assert [cell.strip() for cell in first.split("|")] == [
        "7", "etl/load@r1", "kubernetes", "gpu", TOKEN[:8], "failed",
        row["claimed"], row["ended"], "exit code 1 [base]",
    ]  # fmt: skip


def test_json_for_scripts(capsys):
    table.print_launches([ENDED, _launch()], "json")
    rows = json.loads(capsys.readouterr().out)
    assert [list(row) for row in rows] == [COLUMNS, COLUMNS]
    assert rows[0]["reason"] == "exit code 1 [base]"
    assert rows[1]["reason"] is None


def test_plain_for_scripts_has_a_word_in_every_column(capsys):
    table.print_launches([_launch()], "plain")
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == COLUMNS
    assert len(row.split()) == len(COLUMNS)


@pytest.mark.parametrize(
    ("output", "text"), [("table", "No data found"), ("plain", "No data found"), ("json", "[]")]
)
def test_nothing_to_show(capsys, output, text):
    table.print_launches([], output)
    assert capsys.readouterr().out.strip() == text
