# SPDX-License-Identifier: Apache-2.0
"""The Celery app that messages are sent with, and the result back end that results are read from.

Both are configured by the stock provider, from ``[celery]``, ``[celery_broker_transport_options]`` and
``[celery_result_backend_transport_options]``; only time-outs that the configuration leaves open are set here.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from dispatcher.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery
    from celery.backends.base import Backend as ResultBackend

TASK_NAME = "execute_workload"
"""Name of the stock provider's Celery task."""

NO_RESULTS = "disabled://"
"""Celery's result back end that does nothing."""

UNREADABLE_URL = (
    "The URL of [celery] {} cannot be read. Special characters in its password must be percent-encoded."
)

_SOCKET_OPTIONS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "rediss": ("socket_timeout", "socket_connect_timeout"),
    "sentinel": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout"),
    "amqps": ("read_timeout", "write_timeout"),
    "pyamqp": ("read_timeout", "write_timeout"),
}
"""Broker scheme -> the transport options that bound its socket operations."""

_REDIS_RESULT_OPTIONS = ("redis_socket_timeout", "redis_socket_connect_timeout")

_CREDENTIALS = re.compile(r"://\S*@")
"""Up to the last @: a password that is not encoded may hold more of them, and slashes."""

_REASON_LENGTH = 300


def operation_timeout(conf: Any) -> float:
    """Return ``[celery] operation_timeout`` in seconds: how long the scheduler may wait for a service.

    :param conf: the executor's team-aware configuration
    :raises ConfigurationError: it is no number above 0
    """
    value = conf.get("celery", "operation_timeout", fallback="1.0")
    try:
        seconds = float(value)
    except ValueError as exc:
        raise ConfigurationError(f"[celery] operation_timeout is {value!r}; it must be a number") from exc
    if not seconds > 0:
        raise ConfigurationError(f"[celery] operation_timeout is {value}; it must be above 0")
    return seconds


def create_app(conf: Any, socket_timeout: float) -> tuple[Celery, Callable[[], ResultBackend]]:
    """Make the Celery app of an executor, and what opens the result back end; no service is touched.

    Sending asks nothing of the result back end: it is taken out of the app, or Celery would subscribe to the
    result of every message that it sends, and could send nothing while the result back end is away.

    :param conf: the executor's team-aware configuration
    :param socket_timeout: seconds a socket operation may take where the configuration names no time-out
    :returns: the app, and a function that opens its result back end; a database is connected to at once
    :raises ConfigurationError: the configuration is wrong; the message names no credentials
    """
    from airflow.providers.celery.executors.celery_executor_utils import create_celery_app

    try:
        app = create_celery_app(conf)
        _set_timeouts(app, socket_timeout)
        results = _find_result_backend(app)
        app.conf.result_backend = NO_RESULTS
    except Exception as exc:
        raise ConfigurationError(f"Section [celery] cannot be used: {describe(exc)}.") from exc
    _check_broker_url(app)
    return app, results


def _find_result_backend(app: Celery) -> Callable[[], ResultBackend]:
    from celery.app.backends import by_url
    from celery.backends.base import BaseKeyValueStoreBackend
    from celery.backends.database import DatabaseBackend

    configured = app.conf.result_backend
    backend_class, url = by_url(configured, app.loader)
    if not issubclass(backend_class, (BaseKeyValueStoreBackend, DatabaseBackend)):
        kind = (configured or "none").partition(":")[0]
        raise ConfigurationError(f"result_backend ({kind}) must be Redis or a database")
    return partial(_open_result_backend, app, backend_class, url)


def _open_result_backend(app: Celery, backend_class: Callable[..., ResultBackend], url: str) -> ResultBackend:
    try:
        return backend_class(app=app, url=url)
    except ValueError:
        raise ConfigurationError(UNREADABLE_URL.format("result_backend")) from None  # it quotes the password


def describe(error: BaseException) -> str:
    """Return what went wrong in one line, without credentials.

    :param error: an error of Celery, kombu, a driver or SQLAlchemy
    """
    return one_line(str(error)).rstrip(". ") or type(error).__name__


def one_line(text: str) -> str:
    """Return the first line of ``text``, shortened, with the credentials of URLs taken out."""
    return _CREDENTIALS.sub("://***@", text.strip().partition("\n")[0])[:_REASON_LENGTH]


def _set_timeouts(app: Celery, seconds: float) -> None:
    options = dict(app.conf.broker_transport_options or {})
    for option in _SOCKET_OPTIONS.get(_scheme(app), ()):
        options.setdefault(option, seconds)
    app.conf.broker_transport_options = options
    configured = app.conf.without_defaults()
    for option in _REDIS_RESULT_OPTIONS:
        if option not in configured:
            app.conf[option] = seconds


def _scheme(app: Celery) -> str:
    url = app.conf.broker_url or ""
    first = url if isinstance(url, str) else next(iter(url), "")
    return str(first).partition("://")[0]


def _check_broker_url(app: Celery) -> None:
    try:
        app.connection_for_write()
    except ValueError:
        raise ConfigurationError(UNREADABLE_URL.format("broker_url")) from None  # it quotes the password
