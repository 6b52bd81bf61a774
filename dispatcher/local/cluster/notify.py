# SPDX-License-Identifier: Apache-2.0
"""Wake coroutines when something changed."""

from __future__ import annotations

import asyncio


class Notifier:
    """Wakes every coroutine that waits for the next change.

    Used from one event loop: what is checked right before ``wait`` cannot change in between, so no wake-up is
    lost.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake everybody who waits now."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the next ``notify``.

        :param seconds: how long to wait at most; for ever when absent.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=seconds)
        finally:
            self._waiting.discard(future)
