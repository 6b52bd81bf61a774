# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: stdout is for the result."""

from __future__ import annotations

import sys
import time

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Tell people what happens, and how many seconds after the start."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", file=sys.stderr, flush=True)
