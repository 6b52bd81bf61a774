# SPDX-License-Identifier: Apache-2.0
"""Turn SIGINT, SIGTERM and SIGHUP into one exception, and hold it back where it would do harm."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dispatcher.local.errors import InterruptedBySignalError

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """What signals did so far. The first one counts; later ones must not disturb the end it began."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._held = False
        self._raised = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Raise ``InterruptedBySignalError`` in the main thread on the first of the signals.

        :raises InterruptedBySignalError: a signal arrived
        """
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the block run to its end; a signal that arrives meanwhile is raised after it.

        A process that was started but not yet noted, or an end that stopped half-way, would leave
        processes behind.

        :raises InterruptedBySignalError: a signal arrived during the block
        """
        outer, self._held = self._held, True
        try:
            yield
        finally:
            self._held = outer
        self._raise_if_due()

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._first is None:
            self._first = number
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._first is not None and not self._held and not self._raised:
            self._raised = True
            raise InterruptedBySignalError(self._first)
