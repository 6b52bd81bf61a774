# SPDX-License-Identifier: Apache-2.0
"""Rows of ``dispatcher_launch``: how they are read, and the one way in which several are written."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import ARRAY, ColumnElement, Connection, Row, String, any_, literal, select, update

from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.ledger.models import LaunchRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

CHUNK = 500
"""How many tokens one statement names at most, where each is a parameter of its own."""

ARRAY_CHUNK = 5_000
"""How many it names at most where they are one array; see ``among``."""

COLUMNS = tuple(LaunchRow.__table__.c)
"""All columns."""


def compare_and_set(
    connection: Connection,
    tokens: Collection[str],
    conditions: Sequence[ColumnElement[bool]],
    new: Mapping[str, Any],
    *,
    also: Sequence[ColumnElement[bool]] = (),
) -> dict[str, int]:
    """Write ``new`` to the rows that fit, and return the sequence of each by token.

    :param conditions: on the rows' own columns
    :param also: further conditions, which may look at other tables
    """
    hit: dict[str, int] = {}
    for chunk in chunks_for(connection, tokens):
        hit |= _write_chunk(connection, chunk, conditions, new, also)
    return hit


def _write_chunk(
    connection: Connection,
    tokens: Sequence[str],
    conditions: Sequence[ColumnElement[bool]],
    new: Mapping[str, Any],
    also: Sequence[ColumnElement[bool]],
) -> dict[str, int]:
    returning = connection.dialect.update_returning
    these = among(connection, LaunchRow.token, tokens)
    criteria = [these, *conditions, *also]
    if len(tokens) > 1 or not returning:
        # Rows are locked in the order of their tokens, so that two batches cannot deadlock.
        named = criteria if not returning else [these, *conditions]
        locking = select(LaunchRow.token, LaunchRow.sequence).where(*named).order_by(LaunchRow.token)
        locked = _sequences(connection.execute(locking.with_for_update()))
        if not locked:
            return {}
        if not returning:
            connection.execute(update(LaunchRow).where(LaunchRow.token.in_(locked)).values(**new))
            return locked
        if connection.dialect.name != "sqlite":
            # What is locked stays as it is. Naming the owner again would lead a planner without statistics
            # through all rows of the owner, once for each of these.
            criteria = [among(connection, LaunchRow.token, locked), *also]
    statement = update(LaunchRow).where(*criteria).values(**new)
    return _sequences(connection.execute(statement.returning(LaunchRow.token, LaunchRow.sequence)))


def _sequences(found: Any) -> dict[str, int]:
    sequences: dict[str, int] = dict(found.all())
    return sequences


def among(connection: Connection, column: Any, tokens: Collection[str]) -> ColumnElement[bool]:
    """Return the criterion that ``column`` is one of ``tokens``.

    PostgreSQL gets them as one parameter, and SQLAlchemy and the driver need not handle each.

    :param connection: on which it is used
    """
    if _takes_arrays(connection):
        criterion: ColumnElement[bool] = column == any_(literal(list(tokens), ARRAY(String)))
        return criterion
    in_list: ColumnElement[bool] = column.in_(tokens)
    return in_list


def launch_of(row: Row[Any]) -> Launch:
    """Return a row as the domain knows it."""
    values = dict(row._mapping)  # noqa: SLF001 - the documented accessor of a row
    values["kind"] = LaunchKind(values["kind"])
    values["backend"] = BackendName(values["backend"])
    values["state"] = LaunchState(values["state"])
    return Launch(**values)


def of_team(team: str | None) -> ColumnElement[bool]:
    """Return the criterion "it is the launch of an executor of this team"."""
    return LaunchRow.team_name.is_(None) if team is None else LaunchRow.team_name == team


def values_of(states: Collection[LaunchState]) -> list[str]:
    """Return states as they are stored."""
    return sorted(state.value for state in states)


def chunks(items: Collection[str], size: int = CHUNK) -> Iterator[list[str]]:
    """Yield tokens in their order, as many at once as one statement names."""
    ordered = iter(sorted(items))
    while chunk := list(islice(ordered, size)):
        yield chunk


def chunks_for(connection: Connection, tokens: Collection[str]) -> Iterator[list[str]]:
    """Yield tokens in their order, as many at once as one statement names with ``among``.

    :param connection: on which they are used
    """
    return chunks(tokens, ARRAY_CHUNK if _takes_arrays(connection) else CHUNK)


def _takes_arrays(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"
