# SPDX-License-Identifier: Apache-2.0
"""Reading the results that workers stored: many in one statement, and only what has ended.

Key-value back ends (Redis) and databases can do that. What is stored is taken as it is; Celery's own way
makes exception objects of it, of whatever class the store names. Everything here runs in the results' lane.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from celery import states
from celery.backends.database import DatabaseBackend
from celery.backends.redis import RedisBackend
from redis.exceptions import RedisError, ResponseError
from sqlalchemy import LargeBinary, delete, select, type_coerce

from dispatcher.backends.base import Observation
from dispatcher.backends.celery.app import describe, one_line
from dispatcher.backends.celery.events import ResultEvents
from dispatcher.domain.launch import claimant_from_nonce

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from dispatcher.backends.celery.watched import Changes

    Meta = Mapping[str, Any]
    Decode = Callable[[], Meta]

log = logging.getLogger(__name__)

CHUNK = 1000
"""Results per statement; some databases allow no more than a few thousand parameters."""

RECONCILE_SECONDS = 60.0
"""After how long everything is read although its storing would have been heard."""

READ_SECONDS = 0.03
"""After how long of reading the rest is left to the next call."""

NAMING = ("ExecutionFailedError", "ProcessLostError")
"""Errors of the guard that tell whose they are: their text, then the claimant's nonce or its beginning."""

NAMING_PARTS = 2

FROM_OUTSIDE = ("ProcessLostError", "ExpiredWorkloadError")
"""Errors of the guard that are no fault of the workload: another delivery may fare better."""

TERMINATED = "terminated"
"""What Celery says of a message that was revoked after it began."""


class Results:
    """The stored results of launches.

    :param open_backend: opens Celery's result back end, see ``create_app``
    """

    def __init__(self, open_backend: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._open_backend = open_backend
        self._clock = clock
        self._store: Store | None = None
        self._unreadable: set[str] = set()
        self._events: ResultEvents | None = None
        self._listen_at = 0.0
        self._reconcile_at = 0.0
        self._tokens: set[str] = set()
        self._unread: dict[str, None] = {}
        """What is still to be read, in this order."""
        self._endings: dict[str, Observation] = {}

    def follow(self, changes: Changes) -> list[Observation]:
        """Return the endings stored for what is waited for, at a cost that grows with what has ended.

        On Redis each token is read once, and its ending heard of later; now and then, and whenever something
        may have been missed, everything is read. Of much that is to be read, a call reads a part, and the
        next one goes on there. What was found is told again until it is waited for no more.

        :param changes: of what is waited for, since the last call; known from then on, whatever the call does
        :raises ConfigurationError: the URL of the result back end cannot be read
        :raises Exception: the driver's error, where the result back end is away
        """
        self._take_in(changes)
        store = self._opened()
        if not self._hears_all(store) or self._clock() >= self._reconcile_at:
            self._reconcile_at = self._clock() + RECONCILE_SECONDS
            # What was not reached for some time stays first.
            self._unread |= dict.fromkeys(self._tokens)
        self._read_on()
        return list(self._endings.values())

    def _take_in(self, changes: Changes) -> None:
        for token in changes.dropped:
            self._tokens.discard(token)
            self._unread.pop(token, None)
            self._unreadable.discard(token)
            self._endings.pop(token, None)
        self._tokens |= changes.added
        self._unread |= dict.fromkeys(changes.added)

    def _read_on(self) -> None:
        begun = self._clock()
        while chunk := list(islice(self._unread, CHUNK)):
            for ending in self.read(chunk):
                self._endings[ending.token] = ending
            for token in chunk:
                del self._unread[token]
            if self._clock() - begun >= READ_SECONDS:
                return

    def _hears_all(self, store: Store) -> bool:
        """Take in what was stored since the last call; return whether nothing can have been missed."""
        if not (isinstance(store, KeyValueStore) and store.publishes):
            return False
        if self._events is None:
            if self._clock() >= self._listen_at:
                self._listen()
            return False
        try:
            for token, value in self._events.drain():
                if token in self._tokens:
                    ending = self._ending(token, partial(store.decode, value))
                    if ending is not None:
                        self._endings[token] = ending
        except RedisError as exc:
            log.debug("Results are not heard of for the moment: %s", describe(exc))
            self._stop_listening()
            return False
        return True

    def _listen(self) -> None:
        try:
            self._events = ResultEvents(self._open_backend(), self._clock)
        except ResponseError as exc:
            self._listen_at = self._clock() + RECONCILE_SECONDS
            log.warning(
                "Results are read in every loop, because Redis refuses a subscription to them: %s",
                describe(exc),
            )

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def read(self, tokens: Collection[str]) -> list[Observation]:
        """Return the endings that are stored for ``tokens``.

        A result that cannot be decoded is no evidence: it is named in the log, once, and left out.

        :param tokens: task ids
        :raises ConfigurationError: the URL of the result back end cannot be read
        :raises Exception: the driver's error, where the result back end is away
        """
        store = self._opened()
        endings: list[Observation] = []
        for chunk in _chunks(tokens):
            for token, decode in store.read(chunk):
                ending = self._ending(token, decode)
                if ending is not None:
                    endings.append(ending)
        return endings

    def forget(self, tokens: Collection[str]) -> None:
        """Delete stored results; one that is not there is no error.

        :param tokens: task ids
        :raises ConfigurationError: the URL of the result back end cannot be read
        :raises Exception: the driver's error, where the result back end is away
        """
        store = self._opened()
        for chunk in _chunks(tokens):
            store.forget(chunk)

    def close(self) -> None:
        """Close idle connections."""
        self._stop_listening()
        if self._store is not None:
            self._store.close()

    def _opened(self) -> Store:
        if self._store is None:
            backend = self._open_backend()
            database = isinstance(backend, DatabaseBackend)
            self._store = DatabaseStore(backend) if database else KeyValueStore(backend)
        return self._store

    def _ending(self, token: str, decode: Decode) -> Observation | None:
        try:
            return observation(token, decode())
        except Exception as exc:  # noqa: BLE001  # whatever somebody else stored, it must not stop the rest
            if token not in self._unreadable:
                self._unreadable.add(token)
                log.warning("The stored result of %s cannot be read: %s", token, describe(exc))
            return None


class Store(Protocol):
    """A result back end that reads and deletes many results at once."""

    def read(self, tokens: Sequence[str]) -> Iterator[tuple[str, Decode]]:
        """Yield what is stored for ``tokens``, still to be decoded; what has not ended may be left out."""

    def forget(self, tokens: Sequence[str]) -> None:
        """Delete what is stored for ``tokens``."""

    def close(self) -> None:
        """Close idle connections."""


class KeyValueStore:
    """Redis, or another key-value back end of Celery.

    :param backend: Celery's back end
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    @property
    def publishes(self) -> bool:
        """Whether it tells of a result when it is stored."""
        return isinstance(self._backend, RedisBackend)

    def decode(self, value: bytes) -> Meta:
        """Return what Celery stored."""
        meta: Meta = self._backend.decode(value)
        return meta

    def read(self, tokens: Sequence[str]) -> Iterator[tuple[str, Decode]]:
        """See ``Store``."""
        keys = self._keys(tokens)
        values = self._backend.mget(keys)
        if hasattr(values, "get"):
            values = [values.get(key) for key in keys]
        for token, value in zip(tokens, values, strict=True):
            if value is not None:
                yield token, partial(self.decode, value)

    def forget(self, tokens: Sequence[str]) -> None:
        """See ``Store``."""
        keys = self._keys(tokens)
        if isinstance(self._backend, RedisBackend):
            self._backend.client.delete(*keys)
            return
        for key in keys:
            self._backend.delete(key)

    def close(self) -> None:
        """See ``Store``."""
        if isinstance(self._backend, RedisBackend):
            self._backend.client.connection_pool.disconnect()

    def _keys(self, tokens: Sequence[str]) -> list[Any]:
        return [self._backend.get_key_for_task(token) for token in tokens]


class DatabaseStore:
    """A database, in the table of Celery's own back end.

    :param backend: Celery's back end
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._table = backend.task_cls

    def read(self, tokens: Sequence[str]) -> Iterator[tuple[str, Decode]]:
        """See ``Store``."""
        table = self._table
        # Unpickled row by row: one that fails would take the whole statement with it.
        pickled = type_coerce(table.result, LargeBinary)
        worker = [table.worker] if hasattr(table, "worker") else []
        statement = select(table.task_id, table.status, pickled, *worker).where(
            table.task_id.in_(tokens), table.status.in_(states.READY_STATES)
        )
        with self._backend.ResultSession() as session:
            rows = session.execute(statement).all()
        for row in rows:
            yield row[0], partial(self._meta, *row[1:])

    def forget(self, tokens: Sequence[str]) -> None:
        """See ``Store``."""
        with self._backend.ResultSession() as session, session.begin():
            session.execute(delete(self._table).where(self._table.task_id.in_(tokens)))

    def close(self) -> None:
        """See ``Store``: each session has a connection of its own, closed with it."""

    def _meta(self, status: str, pickled: bytes | None, worker: str | None = None) -> Meta:
        result = None if pickled is None else self._table.result.type.pickler.loads(pickled)
        return {"status": status, "result": result, "worker": worker}


def observation(token: str, meta: Meta) -> Observation | None:
    """Return what a stored result says, or None where nothing has ended.

    STARTED, PENDING and RETRY are no evidence of anything.

    :param token: the task id
    :param meta: what Celery stores: ``status``, ``result`` and, with extended results, ``worker``
    """
    status, result, hostname = meta["status"], meta.get("result"), meta.get("worker")
    if status == states.SUCCESS:
        claimant = _claimant(result)
        return Observation(token, ok=True, hostname=hostname, claimant=claimant, anonymous=claimant is None)
    if status == states.REVOKED:
        # One that was dropped before it began says nothing of another that runs; a terminated one ran.
        began = TERMINATED in _error_of(result)[1]
        return Observation(token, ok=False, reason="revoked", hostname=hostname, anonymous=not began)
    if status == states.FAILURE:
        return _failure(token, result, hostname)
    return None


def _claimant(result: Any) -> str | None:
    nonce = result.get("claimant") if isinstance(result, dict) else None
    return claimant_from_nonce(nonce) if isinstance(nonce, str) else None


def _failure(token: str, result: Any, hostname: str | None) -> Observation:
    name, parts = _error_of(result)
    claimant = None
    text = f"{name}: {', '.join(parts)}"
    if name in NAMING and len(parts) == NAMING_PARTS:
        text, nonce = parts
        claimant = claimant_from_nonce(nonce)
    return Observation(
        token,
        ok=False,
        reason=one_line(text),
        hostname=hostname,
        claimant=claimant,
        by_infrastructure=name in FROM_OUTSIDE,
        anonymous=claimant is None,
    )


def _error_of(result: Any) -> tuple[str, list[str]]:
    """Return the name of a stored error, and what it is made of."""
    if isinstance(result, BaseException):
        return type(result).__name__, [str(part) for part in result.args]
    if isinstance(result, dict) and "exc_type" in result:
        message = result.get("exc_message", "")
        parts = message if isinstance(message, (list, tuple)) else [message]
        return str(result["exc_type"]), [str(part) for part in parts]
    return "failed", [str(result)]


def _chunks(tokens: Collection[str]) -> Iterator[list[str]]:
    ordered = list(tokens)
    for start in range(0, len(ordered), CHUNK):
        yield ordered[start : start + CHUNK]
