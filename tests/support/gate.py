# SPDX-License-Identifier: Apache-2.0
"""A body of a callback or a task that goes on when the test lets it; see ``guarded_dag`` for the marks."""

from __future__ import annotations

import os
import time
from pathlib import Path

GATE_SECONDS = 90


def pass_through() -> None:
    """Leave a mark, wait until a file named ``gate`` lies beside the marks, and leave another mark.

    :raises TimeoutError: the test did not open the gate in time
    """
    marks = Path(os.environ["GUARD_MARKS"])
    _mark(marks, "began")
    deadline = time.monotonic() + GATE_SECONDS
    while not marks.with_name("gate").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody opened the gate")
        time.sleep(0.1)
    _mark(marks, "ended")


def _mark(marks: Path, word: str) -> None:
    with marks.open("a") as file:
        file.write(f"{word}\n")
