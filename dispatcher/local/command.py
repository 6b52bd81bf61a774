# SPDX-License-Identifier: Apache-2.0
"""What the commands ``demo`` and ``up`` share: a stack around a body, and an exit code for every end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dispatcher.local.errors import InterruptedBySignalError, LocalModeError
from dispatcher.local.interrupts import Interrupts
from dispatcher.local.progress import Progress
from dispatcher.local.stack import running

if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.local.stack import Stack

FAILED = 1


def run(body: Callable[[Stack, Progress], None]) -> int:
    """Run ``body`` on a stack with embedded services and return an exit code.

    :param body: what to do with the running stack
    :returns: 0; 1 after a failure, whose reason is on standard error; 128 plus the number of a signal
    """
    progress = Progress()
    interrupts = Interrupts()
    try:
        with interrupts.caught(), running(progress, interrupts) as stack:
            body(stack, progress)
    except LocalModeError as exc:
        print(f"failed: {exc}", file=sys.stderr)
        return FAILED
    except InterruptedBySignalError as exc:
        return exc.exit_code
    return 0
