# SPDX-License-Identifier: Apache-2.0
"""What workers write when a launch is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_REFUSAL = r"launch {token} of \w+ \S+ was refused at the claim \((?P<reason>\w+)\)"


def refusal_in(text: str, token: str) -> str | None:
    """Return the reason for which a worker refused a launch, by what it wrote; None if it did not.

    :param text: output of a worker or a pod
    :param token: the launch token
    """
    found = re.search(_REFUSAL.format(token=re.escape(token)), text, re.IGNORECASE)
    return found["reason"] if found else None


class LogReader:
    """Reads what is appended to a log from now on.

    :param path: the log file
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def read(self) -> str:
        """Return everything that was appended since this object was made."""
        with self._path.open("rb") as log:
            log.seek(self._start)
            return log.read().decode(errors="replace")
