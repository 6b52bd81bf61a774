# SPDX-License-Identifier: Apache-2.0
"""What a failed call to the API server means: it may be asked again, it may not, or nobody knows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ProxyError,
    SSLError,
)

from dispatcher.domain.errors import AmbiguousError, BackendError, PermanentError, RetryableError
from dispatcher.domain.text import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_PAUSE = 300.0
"""No ``Retry-After`` is taken for longer, in seconds."""

_MESSAGE_LIMIT = 400
_QUOTES_THE_REQUEST = ", error found in #"
_TOO_LARGE = ("request is too large", "trying to send message larger than max")
"""What the cluster's database says of an object that is too large for it, with status 500."""

_NEVER_CONNECTED = (NewConnectionError, ConnectTimeoutError, ProxyError, SSLError)


class AlreadyExistsError(PermanentError):
    """An object of this name is there already."""


class NotFoundError(PermanentError):
    """The object, or the namespace it belongs to, is not there."""


class BadRequestError(PermanentError):
    """The API server finds no sense in the request, or there is nothing yet to be asked for."""


class UnauthorizedError(RetryableError):
    """The credentials were refused."""


class ForbiddenError(PermanentError):
    """The credentials do not suffice, or a policy of the cluster forbids it."""


class NoConfigurationError(RetryableError):
    """Nothing says where the cluster is, or it cannot be used."""


class UnreachableError(RetryableError):
    """No connection to the API server could be made."""


class BusyError(RetryableError):
    """The API server wants fewer calls, and not only from this one caller."""


class ExpiredError(RetryableError):
    """The resource version, or the continuation of a list, is too old: list anew."""


_REFUSED_FOR_NOW: Mapping[int, type[RetryableError]] = {
    HTTPStatus.CONFLICT: RetryableError,
    HTTPStatus.GONE: ExpiredError,
    HTTPStatus.TOO_MANY_REQUESTS: BusyError,
    HTTPStatus.SERVICE_UNAVAILABLE: BusyError,
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
}
_REFUSED_FOR_GOOD: Mapping[int, type[PermanentError]] = {
    HTTPStatus.BAD_REQUEST: BadRequestError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
}


def classify(exc: Exception) -> BackendError:
    """Return the typed error for whatever a call raised.

    :param exc: an exception of the client, of its HTTP library or of the operating system
    """
    if isinstance(exc, BackendError):
        return exc
    if isinstance(exc, ApiException) and exc.status:
        return _classify_answer(exc)
    if isinstance(exc, MaxRetryError) and exc.reason is not None:
        return classify(exc.reason)
    if isinstance(exc, (*_NEVER_CONNECTED, ApiException)):
        return UnreachableError(f"the API server cannot be reached: {_one_line(_innermost(exc))}")
    if isinstance(exc, ConfigException):
        return NoConfigurationError(f"no usable Kubernetes configuration: {_one_line(exc).rstrip('.')}")
    if isinstance(exc, (HTTPError, OSError)):
        return AmbiguousError(f"no answer from the API server: {_one_line(exc)}")
    return AmbiguousError(f"the call to the API server failed: {type(exc).__name__}")


def _classify_answer(exc: ApiException) -> BackendError:
    code = int(exc.status)
    status = read_status(exc.body)
    message = _answer_message(code, exc.reason, status)
    pause = _pause(exc.headers or {}, status)
    if code == HTTPStatus.CONFLICT and status.get("reason") == "AlreadyExists":
        return AlreadyExistsError(message)
    if code == HTTPStatus.FORBIDDEN and "exceeded quota" in message:
        return RetryableError(message, retry_after=pause)
    if any(words in message for words in _TOO_LARGE):
        return PermanentError(message)
    if refused := _REFUSED_FOR_NOW.get(code):
        return refused(message, retry_after=pause)
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR or code == HTTPStatus.REQUEST_TIMEOUT:
        return AmbiguousError(message, retry_after=pause)
    return _REFUSED_FOR_GOOD.get(code, PermanentError)(message)


def read_status(body: Any) -> Mapping[str, Any]:
    """Return the ``Status`` object in the body of an answer; empty where there is none.

    :param body: text or bytes
    """
    try:
        status = json.loads(body)
    except (TypeError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def _answer_message(code: int, reason: Any, status: Mapping[str, Any]) -> str:
    told = status.get("message")
    # What follows quotes a piece of the request, and the request holds the workload's JWT.
    text = told.split(_QUOTES_THE_REQUEST, 1)[0] if isinstance(told, str) else str(reason or "")
    return _shortened(f"the API server answered {code}: {text}")


def _pause(headers: Mapping[str, Any], status: Mapping[str, Any]) -> float | None:
    named = headers.get("Retry-After")
    if named is not None:
        return _seconds(str(named))
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return _seconds(str(seconds)) if seconds else None


def _seconds(text: str) -> float | None:
    """Read ``Retry-After``: seconds, a date, or nothing that can be understood."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_PAUSE)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max((when - datetime.now(tz=UTC)).total_seconds(), 0.0), LONGEST_PAUSE)


def _innermost(exc: BaseException) -> BaseException:
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return exc


def _one_line(exc: BaseException) -> str:
    return _shortened(str(exc) or type(exc).__name__)


def _shortened(text: str) -> str:
    line = readable(text)
    return line if len(line) <= _MESSAGE_LIMIT else line[: _MESSAGE_LIMIT - 1] + "…"
