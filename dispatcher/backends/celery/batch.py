# SPDX-License-Identifier: Apache-2.0
"""One batch that is being sent: shared by the thread that sends it and the caller, who may stop waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from dispatcher.backends.base import BEGIN_SECONDS, Postponed, Submission, SubmitResult

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

CHUNK = 500
"""Messages that are handed over, and sent, at once: one chunk is sent while the next is made."""

STOP_AT = 0.8
"""Part of the time budget after which no further send is begun, so that the last one can still end."""


class Batch:
    """Hands out submissions as they come in, highest priority first, and keeps what became of each.

    :param seconds: time budget of the whole batch
    """

    def __init__(self, seconds: float) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Submission] = deque()
        self._complete = False
        self._given_up: Postponed | None = None
        self._results: dict[str, SubmitResult] = {}
        self._sending: set[str] = set()
        self._closed = False
        self._seconds = seconds
        # Nor on a check that has grown old, however long the batch may take.
        self._stop_at = time.monotonic() + min(STOP_AT * seconds, BEGIN_SECONDS)

    def add(self, submissions: Sequence[Submission]) -> None:
        """Let more be sent, after all that was added before.

        :param submissions: what to send; the order of equal priorities is kept
        """
        with self._changed:
            if self._given_up is not None:
                self._results.update(dict.fromkeys((one.token for one in submissions), self._given_up))
                return
            self._waiting.extend(sorted(submissions, key=lambda one: -one.priority))
            self._changed.notify()

    def complete(self) -> None:
        """Say that nothing more is added."""
        with self._changed:
            self._complete = True
            self._changed.notify()

    def queue(self) -> str | None:
        """Return the queue of what is to be sent next, or None when nothing is or the time is up.

        Waits for what may still be added.
        """
        with self._changed:
            while not (self._waiting or self._complete or self._closed):
                left = self._stop_at - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return self._waiting[0].queue if self._may_go_on() else None

    def take(self, queues: Collection[str], most: int) -> list[Submission]:
        """Return what is to be sent now and together, in its order; empty when nothing is or the time is up.

        :param queues: which queues may go together: it ends before a submission for any other
        :param most: how many may go together
        """
        taken: list[Submission] = []
        with self._changed:
            while self._may_go_on() and len(taken) < most and self._waiting[0].queue in queues:
                taken.append(self._waiting.popleft())
            self._sending.update(one.token for one in taken)
        return taken

    def _may_go_on(self) -> bool:
        return bool(self._waiting) and not self._closed and time.monotonic() <= self._stop_at

    def settle(self, token: str, result: SubmitResult) -> None:
        """Note what became of a submission that ``take`` handed out."""
        with self._changed:
            if not self._closed:
                self._results[token] = result
                self._sending.discard(token)

    def postpone_rest(self, result: Postponed) -> None:
        """Give up what has not been handed out yet, or is yet to be added.

        What was handed out, and is not settled, may have been sent.
        """
        with self._changed:
            self._given_up = result
            self._results.update(dict.fromkeys(self._sending, replace(result, ambiguous=True)))
            self._sending.clear()
            while self._waiting:
                self._results[self._waiting.popleft().token] = result

    def close(self, *, answered: bool) -> dict[str, SubmitResult]:
        """Stop handing out and return one result for each token.

        A send that has not come back may have reached the broker. What was not handed out was certainly not
        sent, and may be sent again at once, unless the broker seems to hang.

        :param answered: whether the thread that sends came back
        """
        late = f"not sent within the {self._seconds:g} s of one heartbeat"
        rest = Postponed(late, retry_after=0.0, tried=False)
        if not answered:
            rest = Postponed(f"the broker did not answer within {self._seconds:g} s")
        with self._changed:
            self._closed = True
            self._changed.notify()
            self._results.update(dict.fromkeys(self._sending, replace(rest, ambiguous=True)))
            for submission in self._waiting:
                self._results[submission.token] = rest
            return self._results
