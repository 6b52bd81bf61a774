# SPDX-License-Identifier: Apache-2.0
"""Hearing of results as they are stored, so that what still runs need not be asked for.

Celery's Redis back end publishes each result on a channel that has the name of its key. One subscription to
the pattern of all of them brings those of this deployment, and of whoever else stores results on the server.

Nothing is lost unnoticed: a subscription that broke, that Redis cut off because its reader was too slow, or
that does not answer a ping, ends with an error, and whoever listens reads everything once more. Everything
here runs in the results' lane.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 20_000
"""Results that are taken in at once, so that a flood of other people's results ends somewhere."""

PING_SECONDS = 10.0
"""After how long of silence the subscription is asked whether it is still there."""

ANSWER_SECONDS = 10.0
"""How long it may take to answer."""

UNANSWERED = "the subscription to results does not answer"

_GLOB = str.maketrans({one: f"\\{one}" for one in r"\*?[]"})


class ResultEvents:
    """A subscription to the results that a Redis back end of Celery stores.

    :param backend: Celery's back end
    :raises Exception: the driver's error, where Redis is away or does not allow it
    """

    def __init__(self, backend: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._prefix = _text(backend.get_key_for_task("*")).removesuffix("*")
        self._heard_at = clock()
        self._pinged_at: float | None = None
        self._subscription = backend.client.pubsub()
        self._subscription.psubscribe(self._prefix.translate(_GLOB) + "*")
        # From its answer on, and not from the question, nothing is missed.
        if self._subscription.get_message(timeout=ANSWER_SECONDS) is None:
            raise RedisConnectionError(UNANSWERED)

    def drain(self) -> Iterator[tuple[str, bytes]]:
        """Yield what was stored since the last call, oldest first: task id, and value as Celery wrote it.

        :raises Exception: the subscription broke; something may have been missed
        """
        for _ in range(MOST):
            message = self._subscription.get_message(timeout=0.0)
            if message is None:
                break
            self._heard_at = self._clock()
            self._pinged_at = None
            if message["type"] == "psubscribe":
                # The client connected and subscribed anew by itself.
                raise RedisConnectionError("the subscription to results was interrupted")
            if message["type"] == "pmessage":
                yield _text(message["channel"]).removeprefix(self._prefix), message["data"]
        self._check_silence()

    def close(self) -> None:
        """End the subscription."""
        self._subscription.close()

    def _check_silence(self) -> None:
        now = self._clock()
        if self._pinged_at is not None and now - self._pinged_at > ANSWER_SECONDS:
            raise RedisConnectionError(UNANSWERED)
        if self._pinged_at is None and now - self._heard_at > PING_SECONDS:
            self._pinged_at = now
            self._subscription.ping()


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
