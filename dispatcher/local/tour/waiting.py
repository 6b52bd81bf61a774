# SPDX-License-Identifier: Apache-2.0
"""Wait for what must come, and say what did not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from dispatcher.local.errors import LocalModeError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

POLL_SECONDS = 0.5


def wait_for(what: str, look: Callable[[], T | None], seconds: float) -> T:
    """Look again and again until there is something to see, and return it.

    :param what: names it, should it not come
    :param look: returns what there is to see; None or False means "not yet"
    :param seconds: how long to wait at most
    :raises LocalModeError: it did not come in time
    """
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise LocalModeError(f"waited {seconds:.0f} s in vain for this: {what}")
        time.sleep(POLL_SECONDS)
    return seen


def happened(look: Callable[[], bool], seconds: float) -> bool:
    """Look again and again until it happened; return whether it did.

    :param look: whether it has happened
    :param seconds: how long to wait at most
    """
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
