# SPDX-License-Identifier: Apache-2.0
"""What an API server answers whose fence cannot be set up: nothing at all, and why."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

WEBSOCKET_INTERNAL_ERROR = 1011


async def refuse_to_serve(problem: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the server end at its start, which is the first thing it asks for; else answer 500.

    :param problem: names the setting and what it may be
    """
    from starlette.responses import JSONResponse
    from starlette.websockets import WebSocketClose

    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.failed", "message": problem})
    elif scope["type"] == "websocket":
        await WebSocketClose(code=WEBSOCKET_INTERNAL_ERROR)(scope, receive, send)
    else:
        response = JSONResponse({"detail": problem}, HTTPStatus.INTERNAL_SERVER_ERROR)
        await response(scope, receive, send)
