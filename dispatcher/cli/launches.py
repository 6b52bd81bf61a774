# SPDX-License-Identifier: Apache-2.0
"""``airflow dispatcher launches``: look at the ledger, and stop what it shows."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.platform import getuser
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from airflow.utils.session import create_session

from dispatcher.cli.table import print_launches
from dispatcher.domain.errors import LedgerMissingError
from dispatcher.domain.lifecycle import OPEN, BackendName, LaunchEvent, LaunchKind
from dispatcher.domain.text import readable
from dispatcher.ledger import store
from dispatcher.ledger.check import require_ledger

if TYPE_CHECKING:
    from argparse import Namespace

    from sqlalchemy.orm import Session


@suppress_logs_and_warning
@providers_configuration_loaded
def launches_list(args: Namespace) -> None:
    """Print the launches that the arguments select.

    :raises SystemExit: the migration of the ledger has not run
    """
    with create_session(scoped=False) as session:
        _require_ledger(session)
        launches = store.recent(session.connection(), limit=args.limit, selection=_selection(args))
    print_launches(launches, args.output)


@suppress_logs_and_warning
@providers_configuration_loaded
def launches_revoke(args: Namespace) -> None:
    """Revoke the launches that the arguments name; their scheduler stops them and tells Airflow.

    :raises SystemExit: the migration of the ledger has not run, or a launch could not be revoked
    """
    reason = f"revoked by {getuser()}" + (f": {readable(args.reason)}" if args.reason else "")
    with create_session(scoped=False) as session:
        _require_ledger(session)
        missed = [token for token in args.tokens if not _revoke(session, token, reason)]
    if missed:
        raise SystemExit(1)


def _revoke(session: Session, token: str, reason: str) -> bool:
    launch = store.by_token(session.connection(), token)
    if launch is None:
        _say(f"{token}: there is no such launch")
        return False
    hit = store.record(
        session.connection(),
        LaunchEvent.OPERATOR_REVOKE,
        (token,),
        now=datetime.now(tz=UTC),
        kind=launch.kind,
        reason=reason,
    )
    _say(f"{token}: {reason}" if hit else f"{token}: it has ended already ({launch.state.value})")
    return bool(hit)


def _say(line: str) -> None:
    AirflowConsole().print(line, markup=False, soft_wrap=True)


def _require_ledger(session: Session) -> None:
    try:
        require_ledger(session)
    except LedgerMissingError as exc:
        raise SystemExit(f"airflow dispatcher: {exc}") from exc


def _selection(args: Namespace) -> store.Selection:
    states = set(chain.from_iterable(args.state)) if args.state else None
    if args.open:
        states = set(OPEN) if states is None else states & OPEN
    return store.Selection(
        states=states,
        kind=LaunchKind(args.kind) if args.kind else None,
        backend=BackendName(args.backend) if args.backend else None,
        dag_id=args.dag_id,
        task_id=args.task_id,
        run_id=args.run_id,
    )
