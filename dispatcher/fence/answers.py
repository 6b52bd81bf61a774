# SPDX-License-Identifier: Apache-2.0
"""The answers of the fence, in the one shape that the contract fixes for them."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import HTTPException

from dispatcher.domain.protocol import Refusal
from dispatcher.domain.wire import RefusalReason

BUSY = "launch_busy"
"""Reason of a 503: the rows kept changing under the claim, so it is to be tried again."""


def detail(reason: str, message: str) -> dict[str, str]:
    """Return the ``detail`` of an answer."""
    return {"reason": reason, "message": message}


def refuse(refusal: Refusal) -> HTTPException:
    """Return the exception that answers a refusal: 409, as ``application/json``.

    Airflow's routes let HTTP exceptions through, and clients do not repeat a 409.
    """
    return HTTPException(HTTPStatus.CONFLICT, detail(refusal.reason.value, refusal.message))


def invalid(message: str) -> HTTPException:
    """Return the exception that answers a malformed presentation: 400."""
    return HTTPException(HTTPStatus.BAD_REQUEST, detail(RefusalReason.TOKEN_INVALID.value, message))


def busy() -> HTTPException:
    """Return the exception that asks the client to try again: 503, which Airflow's client repeats."""
    return HTTPException(
        HTTPStatus.SERVICE_UNAVAILABLE, detail(BUSY, "the launch changed while it was claimed; try again")
    )
