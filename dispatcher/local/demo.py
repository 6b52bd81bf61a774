# SPDX-License-Identifier: Apache-2.0
"""``make demo``: start a local Airflow, take the tour, end everything.

    python -m dispatcher.local.demo

Exit code 0 only if all was as it must be.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dispatcher.local.command import no_options, run
from dispatcher.local.errors import LocalModeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dispatcher.local.progress import Progress
    from dispatcher.local.stack import Stack

TOUR_SECONDS = 300


def main(argv: Sequence[str] | None = None) -> int:
    """Start the stack, run the tour and return an exit code.

    :param argv: the command line's arguments; None means the process's own
    :raises SystemExit: ``--help``, or an argument that is not understood
    """
    no_options("dispatcher.local.demo", "Start a local Airflow, take the tour, end everything.", argv)
    return run(_take_tour)


def _take_tour(stack: Stack, progress: Progress) -> None:
    progress.say("the stack is ready; the tour begins")
    if stack.run_tour(TOUR_SECONDS):
        raise LocalModeError("the tour did not come out as it must; the reasons are above")
    progress.say("the tour came out as it must")


if __name__ == "__main__":
    sys.exit(main())
