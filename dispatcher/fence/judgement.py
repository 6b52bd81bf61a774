# SPDX-License-Identifier: Apache-2.0
"""The fence's judgement of one call, in the call's own transaction (rules 7, 8, 10, 11 and 19).

Lock order: the row of the path first, then its launch. All SQL goes through the connection, never through the
ORM session, so that it does not trigger the session hook itself.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import exists, or_

from dispatcher.domain.launch import NONCE_PREFIX, claimant_from_nonce
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.domain.protocol import (
    Permit,
    Refusal,
    judge_call,
    judge_claim,
    judge_untokened,
    why_not_current,
)
from dispatcher.fence import callback_claims
from dispatcher.fence.answers import busy, invalid
from dispatcher.fence.request import Call, FencedRequest, PresentationError, current_request
from dispatcher.ledger import claims, store
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.subjects import is_there, lock_callback, lock_task_instance

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

CLAIM_ATTEMPTS = 3
"""How often a claim whose compare-and-set missed is judged again before the client is asked to."""

_HOSTNAME_LIMIT = 500


def judge(connection: Connection, request: FencedRequest) -> Permit | Refusal:
    """Lock the row of the request's path, judge the call and, for ``/run``, claim the launch.

    :param connection: the transaction of the route
    :param request: the call
    :returns: a permit if the route may go on
    :raises fastapi.HTTPException: 400 if the claimant cannot be named, 503 if the claim kept missing
    """
    token = request.presented.token
    if request.call is Call.RUN_CALLBACK:
        return _judge_callback(connection, request, token)
    if token is None:
        return _judge_untokened(connection, request)
    if request.call is Call.RUN:
        return _judge_run(connection, request, token)
    subject = lock_task_instance(connection, request.subject_id)
    if subject is None and request.call is Call.RTIF:
        # Airflow's supervisor tolerates a late RTIF report only by the 410 that Airflow itself answers with
        # once a retry or a clear has replaced the task instance.
        return Permit.PASS
    nonce = request.presented.nonce
    claimant = None if nonce is None else claimant_from_nonce(nonce)
    return judge_call(store.by_token(connection, token), subject, token, claimant)


def _judge_run(connection: Connection, request: FencedRequest, token: str) -> Permit | Refusal:
    try:
        claimant = request.claimant()
    except PresentationError as exc:
        raise invalid(str(exc)) from exc
    for _ in range(CLAIM_ATTEMPTS):
        subject = lock_task_instance(connection, request.subject_id)
        launch = store.by_token(connection, token, lock=True)
        verdict = judge_claim(launch, subject, token, claimant, by_header=request.presented.by_header)
        if verdict is not Permit.CLAIM or _claim(connection, request, token, claimant):
            return verdict
    raise busy()


def _claim(connection: Connection, request: FencedRequest, token: str, claimant: str) -> bool:
    hostname = request.payload().get("hostname")
    return claims.claim_task(
        connection,
        token,
        str(request.subject_id),
        claimant,
        hostname=None if hostname is None else str(hostname)[:_HOSTNAME_LIMIT],
        now=datetime.now(tz=UTC),
    )


def _judge_callback(connection: Connection, request: FencedRequest, token: str | None) -> Permit | Refusal:
    subject = lock_callback(connection, request.subject_id)
    if subject is None:
        return Permit.PASS
    if token is None:
        return callback_claims.judge_without_token(connection, subject, required=request.required)
    return callback_claims.claim(connection, subject, token, request.claimant(), hostname=None)


def why_gone(request: FencedRequest) -> Refusal | None:
    """Say why a call about a task instance that is gone is refused; None if Airflow's answer is to stand.

    In a transaction of its own: what is gone does not come back. Airflow's supervisor tolerates a late RTIF
    report only by the 410 that Airflow itself answers with.

    :param request: a call that never came to its route; called in a thread with a context of its own
    """
    token = request.presented.token
    if token is None or request.call in (Call.RTIF, Call.RUN_CALLBACK):
        return None
    # In this thread the request is over: the hooks must not take the session for one of the route's.
    current_request.set(None)
    with create_session(scoped=False) as session:
        connection = session.connection()
        launch = store.by_token(connection, token)
        if launch is None or is_there(connection, request.subject_id):
            return None
    return why_not_current(launch)


def _judge_untokened(connection: Connection, request: FencedRequest) -> Permit | Refusal:
    subject = lock_task_instance(connection, request.subject_id)
    if subject is None or subject.token is None:
        return Permit.PASS
    current = store.by_token(connection, subject.token)
    return judge_untokened(current, is_run=request.call is Call.RUN, required=request.required)


def heartbeat_criterion(request: FencedRequest) -> ColumnElement[bool]:
    """Return what the heartbeat's one-statement UPDATE must also demand, instead of a lock (rule 10).

    It is met exactly where ``judge`` would permit the call. Where it is not, the UPDATE misses, Airflow takes
    its slow path, and the locked SELECT there brings the reason.

    :param request: the heartbeat
    """
    token = request.presented.token
    if token is None:
        return ~exists().where(
            LaunchRow.token == TaskInstance.external_executor_id,
            LaunchRow.state == LaunchState.CLAIMED.value,
            LaunchRow.claimant.startswith(NONCE_PREFIX),
        )
    stopped: ColumnElement[bool] = LaunchRow.state.in_(
        (LaunchState.REVOKED.value, LaunchState.SUPERSEDED.value)
    )
    if request.presented.nonce is not None:
        stopped = or_(stopped, LaunchRow.claimant != claimant_from_nonce(request.presented.nonce))
    current = TaskInstance.external_executor_id == token
    return current & ~exists().where(LaunchRow.token == token, stopped)
