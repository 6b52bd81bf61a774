# SPDX-License-Identifier: Apache-2.0
"""Puts the fence into the transactions of Airflow's own routes, by SQLAlchemy's session events (rule 10).

While a fenced request is handled, the first statement by which its route takes hold of the row of its path is
preceded by the fence's judgement in the same transaction: a refusal ends the request there, a claim commits
or rolls back together with what the route does. Without a fenced request the hooks do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.models.callback import Callback
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Select, Update, event
from sqlalchemy.orm import Session

from dispatcher.domain.errors import DispatcherError
from dispatcher.domain.protocol import Permit, Refusal
from dispatcher.fence.answers import busy, refuse
from dispatcher.fence.judgement import heartbeat_criterion, judge
from dispatcher.fence.request import Call, FencedRequest, current_request
from dispatcher.fence.tokens import execution_token

if TYPE_CHECKING:
    from sqlalchemy.orm import ORMExecuteState


class FenceBypassedError(DispatcherError):
    """A fenced call was about to commit although the fence never saw it touch the row of its path.

    That means the route works by other statements than this version knows. The call fails with 500: nothing
    is accepted unjudged.
    """


def install() -> None:
    """Register the hooks, once per process."""
    if not event.contains(Session, "do_orm_execute", _before_statement):
        event.listen(Session, "do_orm_execute", _before_statement)
        event.listen(Session, "after_begin", _note_begin)
        event.listen(Session, "before_commit", _before_commit)


def _before_statement(state: ORMExecuteState) -> None:
    request = current_request.get()
    if request is None or request.row_is_locked or not _takes_hold(state, request):
        return
    session = state.session
    if request.call is Call.HEARTBEAT and isinstance(state.statement, Update):
        state.statement = state.statement.where(heartbeat_criterion(request))
        request.fired = True
        return
    connection = session.connection()
    verdict = judge(connection, request)
    request.fired = True
    if isinstance(verdict, Refusal):
        raise refuse(verdict)
    if verdict is Permit.REPEAT and request.call is Call.RUN_CALLBACK and request.presented.token:
        # Airflow lets a callback start once, so that a claimant whose first answer was lost could not go on.
        # The middleware answers in its place; nothing was written.
        request.granted = execution_token(str(request.subject_id), request.presented.token)
        raise busy()
    # Until this transaction ends the row is locked and judged, also for other sessions of the request: they
    # must not wait for the lock.
    request.judged_in = session.get_transaction()


def _takes_hold(state: ORMExecuteState, request: FencedRequest) -> bool:
    """Say whether a statement is one by which a route takes hold of a task instance, or of a callback.

    A plain SELECT counts only where the route begins with one. Elsewhere it belongs to somebody else, such as
    an authorisation check in a session of its own, whose transaction the claim must not land in.
    """
    model = Callback if request.call is Call.RUN_CALLBACK else TaskInstance
    if not any(issubclass(mapper.class_, model) for mapper in state.all_mappers):
        return False
    if state.is_update or is_locked_select(state):
        return True
    return state.is_select and request.call.reads_first and not _is_async(state.session)


def is_locked_select(state: ORMExecuteState) -> bool:
    """Say whether a statement is a SELECT ... FOR UPDATE.

    SQLAlchemy has no public way to ask; a test holds this attribute in place.
    """
    statement = state.statement
    return isinstance(statement, Select) and statement._for_update_arg is not None  # noqa: SLF001


def _note_begin(session: Session, *_: object) -> None:
    request = current_request.get()
    if request is not None:
        request.begun.add(session)


def _before_commit(session: Session) -> None:
    request = current_request.get()
    if request is None or request.fired or not request.call.must_fire:
        return
    # Airflow opens sessions that it never uses, and commits them. A session on the asynchronous engine may be
    # an authorisation check that ends before the route begins; the middleware looks at what comes of those.
    if session not in request.begun or _is_async(session):
        return
    raise FenceBypassedError(
        f"the call {request.call.value} was about to commit unjudged: this version of Airflow handles it by "
        "statements that the fence does not know"
    )


def _is_async(session: Session) -> bool:
    return session.get_bind().dialect.is_async
