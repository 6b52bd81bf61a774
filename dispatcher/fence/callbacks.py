# SPDX-License-Identifier: Apache-2.0
"""The endpoints at which workers claim callbacks and report their results (rule 19).

Airflow 3.3 has neither; 3.4 has a claim, which is fenced, and still no result. Both calls bring the workload
JWT that the callback was sent with; a plugin's application gets no authentication from Airflow, so it is
verified here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from airflow.models.callback import Callback
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import update

from dispatcher.domain.launch import claimant_from_nonce, claimant_from_process
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind, LaunchState
from dispatcher.domain.protocol import (
    CALLBACK_FINISHED,
    Permit,
    Refusal,
    judge_callback_result,
)
from dispatcher.domain.wire import RefusalReason
from dispatcher.fence import callback_claims
from dispatcher.fence.answers import busy, detail, invalid, refuse
from dispatcher.fence.request import REFRESHED_TOKEN_HEADER, PresentationError, read_presentation
from dispatcher.fence.tokens import (
    START_SCOPES,
    bearer_token,
    execution_token,
    has_expired,
    validator,
)
from dispatcher.ledger import store
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.subjects import lock_callback

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from dispatcher.domain.launch import Launch, Subject

OUTPUT_LIMIT = 10_000
"""Longest output that is kept, in characters: the end of it, where a traceback tells the error."""

RESULT_GRACE = 30 * 24 * 60 * 60
"""Seconds after its expiry for which a workload JWT speaks for the holder of the claim: it limits starts."""

router = APIRouter(prefix="/callbacks")


class ClaimBody(BaseModel):
    """Who claims: the process that will run the callback."""

    model_config = ConfigDict(extra="forbid")

    hostname: Annotated[str, Field(min_length=1, max_length=255)]
    pid: int


class ResultBody(BaseModel):
    """How the callback ended."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["success", "failed"]
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """A worker whose workload JWT was verified, and what it presents.

    :param token: the launch token
    :param nonce: its own nonce, if it sent one
    :param expired: the workload JWT starts nothing any more
    """

    token: str
    nonce: str | None
    expired: bool


async def authenticate(callback_id: UUID, request: Request) -> Caller:
    """Verify the workload JWT of a call, which may have expired, and read what it presents.

    What an expired one is good for is bounded by the ledger: it goes on with a launch that its bearer has
    claimed. A claim may have been granted whose answer was lost, and a callback may run for long.

    :raises fastapi.HTTPException: 401 without a token, 403 for one that is not valid for this callback, 400
        for a malformed launch token, 409 without a launch token
    """
    token = bearer_token(request.headers.get("authorization"))
    if token is None:
        raise HTTPException(HTTPStatus.UNAUTHORIZED, detail("unauthorized", "the workload token is missing"))
    claims = await _verified(token)
    if claims.get("scope") not in START_SCOPES or claims.get("sub") != str(callback_id):
        raise HTTPException(
            HTTPStatus.FORBIDDEN, detail("forbidden", "this token was not issued for this callback")
        )
    try:
        presented = read_presentation(request.headers, claims)
    except PresentationError as exc:
        raise invalid(str(exc)) from exc
    if presented.token is None:
        raise refuse(Refusal(RefusalReason.REQUIRED, "a callback can only be claimed with its launch token"))
    return Caller(presented.token, presented.nonce, has_expired(claims))


async def _verified(token: str) -> dict[str, Any]:
    try:
        return await validator(RESULT_GRACE).avalidated_claims(token)
    except Exception as exc:
        raise _not_valid() from exc


def _not_valid() -> HTTPException:
    return HTTPException(HTTPStatus.FORBIDDEN, detail("forbidden", "the token is not valid"))


AuthenticatedCaller = Annotated[Caller, Depends(authenticate)]


@router.patch("/{callback_id}/run", status_code=HTTPStatus.NO_CONTENT)
def claim(callback_id: UUID, body: ClaimBody, caller: AuthenticatedCaller, response: Response) -> None:
    """Claim a callback and set it RUNNING; the answer carries the token to run it with.

    A repeat by the same claimant is accepted and gets a fresh token, also when its workload JWT has expired
    meanwhile.

    :raises fastapi.HTTPException: 403 for a first claim with an expired token, 404 without such a callback,
        409 for a refusal
    """
    if caller.nonce is None:
        claimant = claimant_from_process(body.hostname, "", body.pid)
    else:
        claimant = claimant_from_nonce(caller.nonce)
    with create_session(scoped=False) as session:
        connection = session.connection()
        subject = _lock(connection, callback_id)
        if caller.expired and not _holds_the_claim(connection, caller.token, claimant):
            raise _not_valid()
        verdict = callback_claims.claim(connection, subject, caller.token, claimant, hostname=body.hostname)
        if isinstance(verdict, Refusal):
            raise refuse(verdict)
        if verdict is Permit.CLAIM:
            _write(connection, subject, state="running")
    response.headers[REFRESHED_TOKEN_HEADER] = execution_token(subject.id, caller.token)


@router.patch("/{callback_id}/state", status_code=HTTPStatus.NO_CONTENT)
def report(callback_id: UUID, body: ResultBody, caller: AuthenticatedCaller) -> None:
    """Record how a claimed callback ended, in the ledger and in the callback's row.

    A repeat is accepted and changes nothing.

    :raises fastapi.HTTPException: 404 without such a callback, 409 for a refusal
    """
    with create_session(scoped=False) as session:
        connection = session.connection()
        subject = _lock(connection, callback_id)
        launch = store.by_token(connection, caller.token, lock=True)
        verdict = judge_callback_result(launch, subject, _reporter(caller, launch))
        if isinstance(verdict, Refusal):
            raise refuse(verdict)
        if verdict is Permit.CLAIM:
            _record(connection, launch, subject, body)


def _lock(connection: Connection, callback_id: UUID) -> Subject:
    subject = lock_callback(connection, callback_id)
    if subject is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, detail("not_found", "there is no such callback"))
    return subject


def _holds_the_claim(connection: Connection, token: str, claimant: str) -> bool:
    launch = store.by_token(connection, token)
    return launch is not None and launch.state is LaunchState.CLAIMED and launch.claimant == claimant


def _reporter(caller: Caller, launch: Launch | None) -> str:
    if caller.nonce is not None:
        return claimant_from_nonce(caller.nonce)
    # A report does not tell its process. Without a nonce the workload JWT alone speaks for the claimant,
    # which is enough unless the claimant had a nonce.
    if launch is None or launch.claimant is None or launch.claimed_with_nonce:
        return ""
    return launch.claimant


def _record(connection: Connection, launch: Launch | None, subject: Subject, body: ResultBody) -> None:
    assert launch is not None
    assert launch.claimant is not None
    # PostgreSQL has no NUL in text.
    output = None if body.output is None else body.output.replace("\x00", "\ufffd")[-OUTPUT_LIMIT:]
    succeeded = body.state == "success"
    hit = store.record(
        connection,
        LaunchEvent.END_OK if succeeded else LaunchEvent.END_FAILED,
        (launch.token,),
        now=datetime.now(tz=UTC),
        kind=LaunchKind.CALLBACK,
        reason=None if succeeded else output or "the callback failed",
        where=(LaunchRow.claimant == launch.claimant,),
    )
    if not hit:
        raise busy()
    # Its state only moves forward: an end that the executor brought about stays.
    if subject.state not in CALLBACK_FINISHED:
        _write(connection, subject, state=body.state, output=output)


def _write(connection: Connection, subject: Subject, **values: str | None) -> None:
    connection.execute(update(Callback).where(Callback.id == UUID(subject.id)).values(**values))
