# SPDX-License-Identifier: Apache-2.0
"""The client a guarded workload talks to the API server with, and how the server's answers are read.

Exceptions come from ``airflow.sdk.api.client`` alone, never from the HTTP library behind it: Airflow 3.3
uses httpx, Airflow 3.4 httpx2.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk.api.client import Client, ServerResponseError

from dispatcher.domain.wire import RefusalReason
from workers.execution import is_expired
from workers.outcomes import ExpiredWorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.execution import Execution

HTTP_STATUS_ERROR = cast("type[ServerResponseError]", ServerResponseError.__mro__[1])
"""The HTTP library's error for any 4xx or 5xx answer; Airflow's own is for those with a JSON body alone."""

HTTP_ERROR = cast("type[Exception]", ServerResponseError.__mro__[2])
"""The HTTP library's base class of errors, which covers failures of transport too."""

_REFUSALS = frozenset(reason.value for reason in RefusalReason if reason is not RefusalReason.TOKEN_INVALID)


def open_client(
    base_url: str,
    token: str,
    execution: Execution,
    on_response: Callable[[Any], None] | None = None,
) -> Client:
    """Return a client that presents the launch in every request; the caller closes it.

    :param base_url: what the paths of requests are relative to
    :param token: JWT to authenticate with
    :param execution: the execution, whose launch is presented
    :param on_response: is called with each response, before Airflow's own hooks turn a 4xx or 5xx into an
        exception
    """
    client = Client(base_url=base_url, token=token)
    client.headers.update(execution.headers)
    if on_response is not None:
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [on_response, *hooks["response"]]}
    return client


def answer_reason(response: Any) -> str | None:
    """Return ``detail.reason`` of an error answer, or None where it has none.

    :param response: a response of Airflow's client
    """
    error = ServerResponseError.from_response(response)
    detail = error.detail if error is not None else None
    reason = detail.get("reason") if isinstance(detail, dict) else None
    return reason if isinstance(reason, str) else None


def refusal_reason(response: Any) -> str | None:
    """Return the reason if the answer is a refusal of the fence: 409 with one of our reasons.

    :param response: a response of Airflow's client
    """
    if response.status_code != HTTPStatus.CONFLICT:
        return None
    reason = answer_reason(response)
    return reason if reason in _REFUSALS else None


def raise_if_expired(error: ServerResponseError, workload_jwt: str, execution: Execution) -> None:
    """Say so if a claim was not accepted because the workload waited for too long (known fault 108).

    :param error: the answer to the claim; not a refusal of the fence
    :param workload_jwt: what the claim was made with
    :param execution: the execution
    :raises ExpiredWorkloadError: the server does not know the caller, and its JWT is no longer valid
    """
    unknown = error.response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    if unknown and is_expired(workload_jwt):
        text = f"{execution} waited for longer than its workload token is valid; nothing was run"
        raise ExpiredWorkloadError(text) from error
