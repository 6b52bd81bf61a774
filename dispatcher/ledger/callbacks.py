# SPDX-License-Identifier: Apache-2.0
"""Callbacks in Airflow's table that the ledger knows nothing of."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow.configuration import conf
from airflow.models.callback import Callback, CallbackType
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from sqlalchemy import select, update

from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.ledger.errors import DATABASE_ERRORS
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.rows import chunks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sqlalchemy import Row
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

CHUNK = 400
"""Callbacks per statement."""

READ_AT_ONCE = 100
"""Callbacks whose data one statement reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCallback:
    """A callback that has not ended, as read.

    :param id: its UUID
    :param state: Airflow's state, lower case
    :param path: import path of what it calls
    :param executor: the executor that it names; None for the default one
    """

    id: str
    state: str
    path: str
    executor: str | None
    dag_id: str | None
    run_id: str | None

    @property
    def standing(self) -> tuple[str, str]:
        """What stays the same for as long as nothing happens to it."""
        return (self.id, self.state)


def ids_without_launch(session: Session) -> list[str]:
    """Return the callbacks that are QUEUED or RUNNING and were never launched by us, the oldest first.

    One that an executor of ours queues has its launch from the same commit on (rule 1).

    :param session: a session of our own
    """
    ids = _ids(session, Callback.state.in_(("queued", "running")))
    launched = {one for chunk in chunks(ids, CHUNK) for one in _launched(session, chunk)}
    return [one for one in ids if one not in launched]


def ids_pending(session: Session, *, since: datetime) -> list[str]:
    """Return the callbacks that are PENDING, the oldest first.

    :param session: a session of our own
    :param since: only those that were made before
    """
    return _ids(session, Callback.state == "pending", Callback.created_at < since)


def read(session: Session, ids: Sequence[str]) -> Iterator[WaitingCallback]:
    """Read callbacks with their data, the oldest first and a few at once: the data may be large.

    One whose data cannot be read is told in the log and left out.

    :param session: a session of our own
    :param ids: their UUIDs, in this order
    """
    for start in range(0, len(ids), READ_AT_ONCE):
        rows = _rows(session, [UUID(one) for one in ids[start : start + READ_AT_ONCE]])
        run_ids = _run_ids(session, [run for row in rows if (run := _run_number(row)) is not None])
        yield from (_callback(row, run_ids) for row in rows)


def of_team(session: Session, found: Collection[WaitingCallback], team: str | None) -> list[WaitingCallback]:
    """Return those whose DAGs belong to a team; all of them in a deployment without teams.

    :param session: a session of our own
    :param found: callbacks
    :param team: the team
    """
    if not conf.getboolean("core", "multi_team"):
        return list(found)
    dag_ids = {one.dag_id for one in found if one.dag_id is not None}
    teams = DagModel.get_dag_id_to_team_name_mapping(sorted(dag_ids), session=session)
    return [one for one in found if teams.get(one.dag_id or "") == team]


def fail(session: Session, callback: WaitingCallback, reason: str) -> bool:
    """Write FAILED to a callback that is still as it was read; return whether it was.

    :param session: a session of our own
    :param callback: which one
    :param reason: for people
    """
    hit = session.connection().execute(
        update(Callback)
        .where(Callback.id == UUID(callback.id), Callback.state == callback.state)
        .values(state="failed", output=reason)
    )
    return hit.rowcount == 1


def _ids(session: Session, *where: Any) -> list[str]:
    statement = select(Callback.id).where(Callback.type == CallbackType.EXECUTOR.value, *where)
    ordered = statement.order_by(Callback.created_at, Callback.id)
    return [str(callback_id) for callback_id in session.scalars(ordered)]


def _launched(session: Session, ids: list[str]) -> Iterator[str]:
    statement = select(LaunchRow.subject_id).where(
        LaunchRow.subject_id.in_(ids), LaunchRow.kind == LaunchKind.CALLBACK.value
    )
    yield from session.scalars(statement)


def _rows(session: Session, page: Sequence[UUID]) -> list[Row[Any]]:
    statement = (
        select(Callback.id, Callback.state, Callback.data)
        .where(Callback.id.in_(page))
        .order_by(Callback.created_at, Callback.id)
    )
    try:
        return list(session.execute(statement).all())
    except DATABASE_ERRORS:
        raise
    except Exception as exc:  # noqa: BLE001  # whatever Airflow's serialization raises for data of anybody
        if len(page) == 1:
            log.warning("Callback %s cannot be read and is left alone (%s)", page[0], type(exc).__name__)
            return []
        return [row for one in page for row in _rows(session, [one])]


def _run_ids(session: Session, numbers: Iterable[int]) -> dict[int, str]:
    rows = session.execute(select(DagRun.id, DagRun.run_id).where(DagRun.id.in_(set(numbers))))
    return {row.id: row.run_id for row in rows}


def _callback(row: Row[Any], run_ids: dict[int, str]) -> WaitingCallback:
    data = row.data if isinstance(row.data, dict) else {}
    number = _run_number(row)
    return WaitingCallback(
        id=str(row.id),
        state=str(getattr(row.state, "value", row.state)).lower(),
        path=str(data.get("path")),
        executor=_text(data.get("executor")),
        dag_id=_text(data.get("dag_id")),
        run_id=None if number is None else run_ids.get(number),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _run_number(row: Row[Any]) -> int | None:
    number = str(row.data.get("dag_run_id")) if isinstance(row.data, dict) else ""
    return int(number) if number.isdigit() else None
