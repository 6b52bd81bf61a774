# SPDX-License-Identifier: Apache-2.0
"""Whether the ledger's migration has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import inspect

from dispatcher.domain.errors import LedgerMissingError
from dispatcher.ledger.manager import DispatcherDBManager
from dispatcher.ledger.models import LaunchRow

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def require_ledger(session: Session) -> None:
    """Make sure that the table of launches is there, in the version of this code.

    :param session: a session on Airflow's metadata database
    :raises LedgerMissingError: it is not; the message says what to do
    """
    if not inspect(session.connection()).has_table(LaunchRow.__tablename__):
        raise LedgerMissingError("the table of the ledger is missing: run `airflow db migrate`")
    manager = DispatcherDBManager(session)  # type: ignore[no-untyped-call]
    if not manager.check_migration():  # type: ignore[no-untyped-call]
        raise LedgerMissingError("the table of the ledger is not up to date: run `airflow db migrate`")
