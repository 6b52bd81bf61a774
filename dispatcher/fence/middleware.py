# SPDX-License-Identifier: Apache-2.0
"""The ASGI middleware of the fence: recognises fenced calls and reads what they present.

It decides nothing about launches: that happens in the route's own transaction, see ``session_hook``.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from dispatcher.fence.request import (
    BODY_LIMIT,
    REFRESHED_TOKEN_HEADER,
    Call,
    FencedRequest,
    PresentationError,
    current_request,
    find_call,
    read_presentation,
)
from dispatcher.fence.unusable import refuse_to_serve

if TYPE_CHECKING:
    from uuid import UUID

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)


class FenceMiddleware:
    """Root middleware of the API server; one instance per process.

    Where ``[dispatcher] fence`` has a value that does not exist, the server does not start. To raise that
    here would not do: a server takes it for an application without a start-up, and answers 500 to all calls.

    :param app: the application behind it
    """

    def __init__(self, app: ASGIApp) -> None:
        # Late imports: the plugin imports this module in every Airflow process, this runs on API servers.
        from airflow.configuration import conf

        from dispatcher.domain.errors import ConfigurationError
        from dispatcher.fence import session_hook
        from dispatcher.settings import FenceMode, load_fence_mode

        self._app = app
        self._problem: str | None = None
        try:
            self._required = load_fence_mode(conf) is FenceMode.REQUIRED
        except ConfigurationError as exc:
            self._problem = str(exc)
            log.critical("The API server cannot serve with the fence: %s", exc)
            return
        session_hook.install()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if self._problem is not None:
            await refuse_to_serve(self._problem, scope, receive, send)
            return
        target = find_call(scope) if scope["type"] == "http" else None
        if target is None:
            await self._app(scope, receive, send)
            return
        try:
            request = self._read(scope, *target)
        except PresentationError as exc:
            await _answer_invalid(str(exc), scope, receive, send)
            return
        if request.presented.token is None and not self._required:
            # Judged by state alone, which Airflow does.
            await self._app(scope, receive, send)
            return
        await self._handle(request, scope, receive, send)

    def _read(self, scope: Scope, call: Call, subject_id: UUID) -> FencedRequest:
        from starlette.datastructures import Headers

        from dispatcher.fence.tokens import bearer_token, unverified_claims

        headers = Headers(scope=scope)
        # Not verified here: the route's own authentication verifies the signature before it opens a session,
        # so no forged claim ever reaches the judgement.
        claims = unverified_claims(bearer_token(headers.get("authorization")))
        presented = read_presentation(headers, claims)
        return FencedRequest(call, subject_id, presented, self._required)

    async def _handle(self, request: FencedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        replaced = False

        async def read() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                room = BODY_LIMIT - len(request.body)
                request.body += message.get("body", b"")[:room]
            return message

        async def answer(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start":
                if instead := await _answer_instead(request, message):
                    replaced = True
                    await instead(scope, receive, send)
                elif _is_claim(request, message):
                    _add_launch_token(request, message)
            if not replaced:
                await send(message)

        context = current_request.set(request)
        try:
            await self._app(scope, read if request.call is Call.RUN else receive, answer)
        finally:
            current_request.reset(context)


async def _answer_instead(request: FencedRequest, start: Message) -> Response | None:
    """Return what is answered in place of Airflow's own answer, if anything is."""
    if request.granted is not None:
        return _grant(request.granted)
    if _was_bypassed(request, start):
        return _bypassed(request)
    if start["status"] in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) and not request.fired:
        return await _known_as_old(request)
    return None


def _was_bypassed(request: FencedRequest, start: Message) -> bool:
    accepted = HTTPStatus.OK <= start["status"] < HTTPStatus.MULTIPLE_CHOICES
    return accepted and request.call.must_fire and not request.fired


def _grant(execution_token: str) -> Response:
    from starlette.responses import Response

    return Response(status_code=HTTPStatus.NO_CONTENT, headers={REFRESHED_TOKEN_HEADER: execution_token})


async def _known_as_old(request: FencedRequest) -> Response | None:
    """Return the refusal of a call that Airflow turned away before its route began (rule 10).

    Airflow 3.4 does so with calls about a try that is archived.
    """
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse

    from dispatcher.fence.answers import refuse
    from dispatcher.fence.judgement import why_gone

    refusal = await run_in_threadpool(why_gone, request)
    if refusal is None:
        return None
    error = refuse(refusal)
    return JSONResponse({"detail": error.detail}, status_code=error.status_code)


def _is_claim(request: FencedRequest, start: Message) -> bool:
    return request.call.is_claim and start["status"] in (HTTPStatus.OK, HTTPStatus.NO_CONTENT)


def _add_launch_token(request: FencedRequest, start: Message) -> None:
    """Add the launch token to the execution token that a successful claim is answered with (rule 9)."""
    from starlette.datastructures import MutableHeaders

    from dispatcher.fence.tokens import with_launch_token

    headers = MutableHeaders(scope=start)
    refreshed = headers.get(REFRESHED_TOKEN_HEADER)
    if refreshed is not None and request.presented.token is not None:
        headers[REFRESHED_TOKEN_HEADER] = with_launch_token(refreshed, request.presented.token)


def _bypassed(request: FencedRequest) -> Response:
    from starlette.responses import JSONResponse

    log.error(
        "The call %s was accepted unjudged: this version of Airflow handles it by statements that the fence "
        "does not know. It is answered with 500.",
        request.call.value,
    )
    return JSONResponse({"detail": "Internal Server Error"}, HTTPStatus.INTERNAL_SERVER_ERROR)


async def _answer_invalid(message: str, scope: Scope, receive: Receive, send: Send) -> None:
    from starlette.responses import JSONResponse

    from dispatcher.fence.answers import invalid

    error = invalid(message)
    response = JSONResponse({"detail": error.detail}, status_code=error.status_code)
    await response(scope, receive, send)
