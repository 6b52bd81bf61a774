# SPDX-License-Identifier: Apache-2.0
"""Progress lines: what happens, and how many seconds after the start."""

from __future__ import annotations

import time


class Progress:
    """Writes one line per step to standard output.

    :param start: when it all began, in seconds since the epoch; None for now
    """

    def __init__(self, start: float | None = None) -> None:
        self.start = time.time() if start is None else start

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.time() - self.start

    def say(self, text: str) -> None:
        """Write one line, with the time since the start before it."""
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)
