# SPDX-License-Identifier: Apache-2.0
"""The dispatcher's callback endpoints, as the worker calls them.

They live on the API server's root application, next to the execution API: the execution API's URL without
its trailing ``/execution/``, then ``dispatcher/callbacks/{id}/run`` and ``.../state``.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.api.client import get_hostname
from tenacity import Retrying, before_sleep_log, retry_if_exception, stop_after_attempt, wait_exponential

from dispatcher.domain.text import storable
from workers.api import (
    HTTP_ERROR,
    HTTP_STATUS_ERROR,
    answer_reason,
    open_client,
    raise_if_expired,
    refusal_reason,
)
from workers.outcomes import NOT_FOUND, ReportNotDeliveredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk.api.client import ServerResponseError

    from workers.execution import Execution

log = logging.getLogger(__name__)

CallbackResult = Literal["success", "failed"]

REFRESHED_TOKEN_HEADER = "Refreshed-API-Token"
EXECUTION_PATH = "/execution"
OUTPUT_LIMIT = 10_000
"""Longest output that is reported, in characters; the end of a longer one is kept."""


@dataclass(frozen=True, slots=True)
class ReportRetries:
    """How often a callback is claimed, and its result reported, before the worker gives up.

    Each attempt is one call of Airflow's client, which itself repeats a request that failed in transport or
    with 5xx, as ``[workers] execution_api_retries`` and its neighbours say. The defaults add up to several
    minutes, enough for an API server to be replaced.

    :param attempts: calls of the client
    :param wait_min: seconds before the second attempt; doubled each time
    :param wait_max: longest pause between two attempts, in seconds
    """

    attempts: int = 6
    wait_min: float = 5.0
    wait_max: float = 60.0


class CallbackRefusedError(Exception):
    """The fence refused the callback's claim or report, or the callback no longer exists.

    :param reason: a value of ``RefusalReason``, or ``not_found``
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoCallbackEndpointError(Exception):
    """The API server does not know the dispatcher's endpoints: it runs without the plugin."""


class CallbackApi:
    """The two calls about one callback, authenticated by its workload JWT.

    :param server: URL of the execution API
    :param token: the workload JWT, whose subject is the callback
    :param execution: the execution, whose launch is presented
    :param retries: how claim and report are repeated
    """

    def __init__(
        self, server: str, token: str, execution: Execution, retries: ReportRetries | None = None
    ) -> None:
        self._base_url = dispatcher_base_url(server)
        self._token = token
        self._execution = execution
        self._retries = retries or ReportRetries()

    def claim(self) -> str:
        """Claim the callback and return the execution token to run it with (rule 19).

        Repeated while there is no final answer: the server may have granted a claim whose answer was lost,
        and nobody else can run the callback then. The same claimant is let in again.

        :raises CallbackRefusedError: another execution has the claim, or the launch is not current
        :raises NoCallbackEndpointError: the API server runs without the dispatcher's plugin
        :raises ExpiredWorkloadError: the callback waited for too long
        :raises Exception: Airflow's client gave up, or the server answered with another error
        """
        try:
            body = {"hostname": _hostname(), "pid": os.getpid()}
            response = self._repeated("run", body, _may_succeed_later)
        except HTTP_STATUS_ERROR as exc:
            _raise_if_refused(exc)
            if _is_without_endpoint(exc):
                raise NoCallbackEndpointError from exc
            raise_if_expired(exc, self._token, self._execution)
            raise
        token: str = response.headers[REFRESHED_TOKEN_HEADER]
        return token

    def report(self, state: CallbackResult, output: str | None) -> None:
        """Report how the callback ended, and repeat this while there is no final answer (rule 12).

        That a server has no endpoint is not final: another one took the claim. During an upgrade some have
        the plugin and others do not yet.

        :param state: how it ended
        :param output: text for the user, shortened to its last ``OUTPUT_LIMIT`` characters
        :raises CallbackRefusedError: the claim no longer stands, so there is nothing to report to
        :raises ReportNotDeliveredError: no answer that ends the matter
        """
        body = {"state": state, "output": storable(output[-OUTPUT_LIMIT:]) if output else None}
        try:
            self._repeated("state", body, _report_may_succeed_later)
        except HTTP_STATUS_ERROR as exc:
            _raise_if_refused(exc)
            raise ReportNotDeliveredError(f"The result of {self._execution} was rejected: {exc}") from exc
        except HTTP_ERROR as exc:
            raise ReportNotDeliveredError(
                f"The result of {self._execution} was not delivered: {exc}"
            ) from exc

    def _repeated(self, call: str, body: dict[str, Any], again: Callable[[BaseException], bool]) -> Any:
        retries = Retrying(
            retry=retry_if_exception(again),
            stop=stop_after_attempt(self._retries.attempts),
            wait=wait_exponential(multiplier=self._retries.wait_min, max=self._retries.wait_max),
            before_sleep=before_sleep_log(log, logging.WARNING),
            reraise=True,
        )
        return retries(self._patch, call, body)

    def _patch(self, call: str, body: dict[str, Any]) -> Any:
        # A client of its own for each call: an answer may carry an execution token, which would replace the
        # workload JWT in the client that received it.
        client = open_client(self._base_url, self._token, self._execution)
        try:
            return client.patch(f"dispatcher/callbacks/{self._execution.subject_id}/{call}", json=body)
        finally:
            client.close()


def dispatcher_base_url(server: str) -> str:
    """Return the URL under which the API server serves ``dispatcher/``.

    :param server: URL of the execution API, as a rule ending in ``/execution/``; another is used as it is
    """
    return server.rstrip("/").removesuffix(EXECUTION_PATH) + "/"


def _hostname() -> str:
    hostname: str = get_hostname()  # type: ignore[no-untyped-call]
    return hostname


def _raise_if_refused(exc: ServerResponseError) -> None:
    reason = refusal_reason(exc.response)
    if reason is None and exc.response.status_code == HTTPStatus.NOT_FOUND:
        reason = NOT_FOUND if answer_reason(exc.response) == NOT_FOUND else None
    if reason is not None:
        raise CallbackRefusedError(reason) from exc


def _is_without_endpoint(exc: BaseException) -> bool:
    if not isinstance(exc, HTTP_STATUS_ERROR):
        return False
    missing = exc.response.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
    return missing and answer_reason(exc.response) != NOT_FOUND


def _report_may_succeed_later(exc: BaseException) -> bool:
    return _may_succeed_later(exc) or _is_without_endpoint(exc)


def _may_succeed_later(exc: BaseException) -> bool:
    if isinstance(exc, HTTP_STATUS_ERROR):
        return bool(exc.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR)
    return isinstance(exc, HTTP_ERROR)
