# SPDX-License-Identifier: Apache-2.0
"""What the commands ``demo`` and ``up`` share: a stack around a body, and an exit code for every end."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from dispatcher.local.errors import InterruptedBySignalError, LocalModeError
from dispatcher.local.interrupts import Interrupts
from dispatcher.local.progress import Progress
from dispatcher.local.stack import running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dispatcher.local.stack import Stack

FAILED = 1


def no_options(module: str, what: str, argv: Sequence[str] | None) -> None:
    """Answer ``--help``; a command that takes no options starts nothing where it is given any.

    :param module: the command's module
    :param what: what it does, for people
    :param argv: the command line's arguments; None means the process's own
    :raises SystemExit: code 0 after the help, 2 for anything else that was given
    """
    ArgumentParser(prog=f"python -m {module}", description=what).parse_args(argv)


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
