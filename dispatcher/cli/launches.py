# SPDX-License-Identifier: Apache-2.0
"""``airflow dispatcher launches``: look at the ledger."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from airflow.utils.session import create_session

from dispatcher.cli.table import print_launches
from dispatcher.domain.errors import LedgerMissingError
from dispatcher.domain.lifecycle import OPEN, BackendName, LaunchKind
from dispatcher.ledger import store
from dispatcher.ledger.check import require_ledger

if TYPE_CHECKING:
    from argparse import Namespace


@suppress_logs_and_warning
@providers_configuration_loaded
def launches_list(args: Namespace) -> None:
    """Print the launches that the arguments select.

    :raises SystemExit: the migration of the ledger has not run
    """
    with create_session(scoped=False) as session:
        try:
            require_ledger(session)
        except LedgerMissingError as exc:
            raise SystemExit(f"airflow dispatcher: {exc}") from exc
        launches = store.recent(session.connection(), limit=args.limit, selection=_selection(args))
    print_launches(launches, args.output)


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
