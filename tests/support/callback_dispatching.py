# SPDX-License-Identifier: Apache-2.0
"""What tests do with callbacks that an executor has in hand; see also ``dispatching``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow.models.callback import Callback
from airflow.utils.session import create_session
from sqlalchemy import update

from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind
from dispatcher.ledger import claims, store
from dispatcher.ledger.models import LaunchRow
from tests.support import rows
from tests.support.dispatching import loop, queue_callback
from tests.support.service_dispatching import launches_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from dispatcher.executor import HybridExecutor


def new_callback(**columns: Any) -> UUID:
    """Add a callback that nobody has queued yet, and return its UUID; see ``rows.make_callback``."""
    with create_session(scoped=False) as session:
        return rows.make_callback(session, **columns).id


def sent_callback(executor: HybridExecutor, **columns: Any) -> tuple[UUID, str]:
    """Queue a new callback and send it; return its UUID and its token."""
    callback_id = new_callback(**columns)
    queue_callback(executor, callback_id)
    assert loop(executor) == {}
    return callback_id, token_of(callback_id)


def token_of(callback_id: UUID) -> str:
    """Return the token of the newest launch of a callback."""
    return launches_of(callback_id)[-1].token


def state(callback_id: UUID) -> str:
    """Return Airflow's state of a callback."""
    with create_session(scoped=False) as session:
        return str(session.get(Callback, callback_id).state)


def claim(callback_id: UUID, token: str, claimant: str = "nonce:one", hostname: str = "worker-1") -> bool:
    """Claim a launch of a callback, as the endpoint does."""
    with create_session(scoped=False) as session:
        won = claims.claim_callback(
            session.connection(), token, str(callback_id), claimant, hostname=hostname, now=rows.utcnow()
        )
        if won:
            session.execute(update(Callback).where(Callback.id == callback_id).values(state="running"))
        return won


def report(callback_id: UUID, token: str, result: str = "success") -> None:
    """Record the result of a claimed callback, as the endpoint does."""
    event = LaunchEvent.END_OK if result == "success" else LaunchEvent.END_FAILED
    with create_session(scoped=False) as session:
        assert store.record(
            session.connection(), event, (token,), now=rows.utcnow(), kind=LaunchKind.CALLBACK
        )
        session.execute(update(Callback).where(Callback.id == callback_id).values(state=result))


def hear(told: Iterable[tuple[Any, tuple[Any, Any]]]) -> None:
    """Write what Airflow was told, as its scheduler does."""
    with create_session(scoped=False) as session:
        for key, (result, output) in told:
            values = {"state": str(result), "output": output}
            session.execute(update(Callback).where(Callback.id == UUID(key.id)).values(**values))


def ago(callback_id: UUID, **columns: timedelta) -> None:
    """Make times of a callback's launches lie in the past.

    :param columns: how long ago, by column of the ledger
    """
    values = {name: rows.utcnow() - age for name, age in columns.items()}
    with create_session(scoped=False) as session:
        session.execute(update(LaunchRow).where(LaunchRow.subject_id == str(callback_id)).values(**values))


def issued_ago(callback_id: UUID, age: timedelta) -> None:
    """Make a callback's launches ones that were issued so long ago."""
    ago(callback_id, issued_at=age)


def turn(executor: HybridExecutor, turns: int = 1) -> list[tuple[Any, tuple[Any, Any]]]:
    """Run the loop; return what Airflow was told, each end once, though it is told until it is heard."""
    told: dict[Any, tuple[Any, Any]] = {}
    for _ in range(turns):
        told |= loop(executor)
    return list(told.items())


def sweep(executor: HybridExecutor, turns: int = 2) -> list[tuple[Any, tuple[Any, Any]]]:
    """Run the loop with a sweep in each turn; return as ``turn`` does."""
    told: dict[Any, tuple[Any, Any]] = {}
    for _ in range(turns):
        executor.dispatcher.sweep_soon()
        told |= loop(executor)
    return list(told.items())


def settled(callback_id: UUID) -> bool:
    """Whether every launch of a callback has ended, and Airflow has taken that up."""
    return all(launch.settled_at is not None for launch in launches_of(callback_id))
