# SPDX-License-Identifier: Apache-2.0
"""``make up``: a local Airflow that runs until Ctrl-C, with its UI.

python -m dispatcher.local.up
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from dispatcher.local.command import no_options, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dispatcher.local.progress import Progress
    from dispatcher.local.stack import Stack

CHECK_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Start the stack, say where its UI is, and return an exit code when a signal or a failure ended it.

    :param argv: the command line's arguments; None means the process's own
    :raises SystemExit: ``--help``, or an argument that is not understood
    """
    no_options("dispatcher.local.up", "Run a local Airflow, with its UI, until Ctrl-C.", argv)
    return run(_stay)


def _stay(stack: Stack, progress: Progress) -> None:
    stack.open_gate()
    progress.say(f"Airflow runs at {stack.api_url}")
    progress.say(f"log in as {stack.login.user} with the password {stack.login.password}")
    progress.say("Ctrl-C ends it")
    while True:
        stack.check()
        time.sleep(CHECK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
