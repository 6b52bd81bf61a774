# SPDX-License-Identifier: Apache-2.0
"""One batch that is being sent: shared by the thread that sends it and the caller, who may stop waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from dispatcher.backends.base import Postponed, Submission, SubmitResult

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP_AT = 0.8
"""Part of the time budget after which no further send is begun, so that the last one can still end."""


class Batch:
    """Hands out submissions, highest priority first, and keeps what became of each.

    :param submissions: what to send; the order of equal priorities is kept
    :param seconds: time budget of the whole batch
    """

    def __init__(self, submissions: Sequence[Submission], seconds: float) -> None:
        self._lock = threading.Lock()
        self._waiting = deque(sorted(submissions, key=lambda one: -one.priority))
        self._results: dict[str, SubmitResult] = {}
        self._sending: str | None = None
        self._closed = False
        self._seconds = seconds
        self._stop_at = time.monotonic() + STOP_AT * seconds

    def next(self) -> Submission | None:
        """Return what is to be sent now, or None when nothing is or the time is up."""
        with self._lock:
            if self._closed or not self._waiting or time.monotonic() > self._stop_at:
                return None
            submission = self._waiting.popleft()
            self._sending = submission.token
            return submission

    def settle(self, token: str, result: SubmitResult) -> None:
        """Note what became of a submission that ``next`` handed out."""
        with self._lock:
            if not self._closed:
                self._results[token] = result
                self._sending = None

    def postpone_rest(self, result: Postponed) -> None:
        """Give up what has not been handed out yet."""
        with self._lock:
            while self._waiting:
                self._results[self._waiting.popleft().token] = result

    def close(self) -> dict[str, SubmitResult]:
        """Stop handing out and return one result for each token.

        A send that has not come back may have reached the broker. What was not handed out was certainly not
        sent, and may be sent again at once, unless the broker seems to hang.
        """
        late = f"not sent within the {self._seconds:g} s of one heartbeat"
        rest = Postponed(late, retry_after=0.0, tried=False)
        with self._lock:
            self._closed = True
            if self._sending is not None:
                rest = Postponed(f"the broker did not answer within {self._seconds:g} s")
                self._results[self._sending] = replace(rest, ambiguous=True)
            for submission in self._waiting:
                self._results[submission.token] = rest
            return self._results
