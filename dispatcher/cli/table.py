# SPDX-License-Identifier: Apache-2.0
"""Launches for people and scripts: the one place that puts them into a table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.cli.simple_table import AirflowConsole, SimpleTable
from rich.text import Text

from dispatcher.domain.lifecycle import LaunchKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dispatcher.domain.launch import Launch

WIDE = 160
"""A terminal with fewer columns gets the short table."""

_SHORT_COLUMNS = ("sequence", "subject", "backend", "queue", "token", "state", "claimed", "ended", "reason")
_LONG_COLUMNS = ("subject", "reason")
_SHORT_TOKEN = 8
_UNKNOWN = "-"


def subject_of(launch: Launch) -> str:
    """Name what a launch is about: ``dag/task[map]@run`` of a task, the UUID of a callback."""
    if launch.kind is LaunchKind.CALLBACK:
        return launch.subject_id
    index = f"[{launch.map_index}]" if launch.map_index >= 0 else ""
    return f"{launch.dag_id}/{launch.task_id}{index}@{launch.run_id}"


def exact_row(launch: Launch) -> dict[str, str | int | None]:
    """Return the columns of a launch with exact times (ISO 8601, UTC), for scripts."""
    return {
        "sequence": launch.sequence,
        "kind": launch.kind.value,
        "subject": subject_of(launch),
        "backend": launch.backend.value,
        "queue": launch.queue,
        "token": launch.token,
        "state": launch.state.value,
        "issued": _exact(launch.issued_at),
        "submitted": _exact(launch.submitted_at),
        "claimed": _exact(launch.claimed_at),
        "ended": _exact(launch.ended_at),
        "reason": launch.end_reason,
    }


def readable_row(launch: Launch) -> dict[str, str]:
    """Return the columns of a launch for people: later times count from the issue, in seconds."""
    issued = launch.issued_at
    later = {
        "issued": _UNKNOWN if issued is None else issued.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "submitted": _since(issued, launch.submitted_at),
        "claimed": _since(issued, launch.claimed_at),
        "ended": _since(issued, launch.ended_at),
    }
    columns = exact_row(launch) | later
    return {name: _UNKNOWN if value is None else str(value) for name, value in columns.items()}


def print_launches(launches: Sequence[Launch], output: str = "table") -> None:
    """Print launches in their order.

    :param launches: what to print
    :param output: ``table``, ``plain``, ``json`` or ``yaml``, as with Airflow's own commands
    """
    console = AirflowConsole()
    if output == "table" and launches:
        console.print(_table(launches, short=console.width < WIDE))
    else:
        missing = _UNKNOWN if output == "plain" else None
        console.print_as([_filled(exact_row(launch), missing) for launch in launches], output)


def _table(launches: Sequence[Launch], *, short: bool) -> SimpleTable:
    rows = [readable_row(launch) for launch in launches]
    table = SimpleTable(show_header=True)  # type: ignore[no-untyped-call]
    columns = [name for name in rows[0] if not short or name in _SHORT_COLUMNS]
    for name in columns:
        heading = "issued (UTC)" if name == "issued" else name
        table.add_column(heading, no_wrap=name not in _LONG_COLUMNS)
    for row in rows:
        if short:
            row["token"] = row["token"][:_SHORT_TOKEN]
        # Plain text: square brackets must not be read as markup.
        table.add_row(*(Text(row[name]) for name in columns))
    return table


def _filled(row: dict[str, str | int | None], missing: str | None) -> dict[str, str | int | None]:
    return {name: missing if value is None else value for name, value in row.items()}


def _exact(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat()


def _since(start: datetime | None, time: datetime | None) -> str:
    if start is None or time is None:
        return _UNKNOWN
    return f"{(time - start).total_seconds():+.1f} s"
