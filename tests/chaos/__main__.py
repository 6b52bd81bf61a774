# SPDX-License-Identifier: Apache-2.0
"""Make a run and print its result: progress on stderr, one line of JSON at the end of stdout."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dispatcher.local.errors import InterruptedBySignalError, LocalModeError
from dispatcher.local.interrupts import Interrupts
from tests.chaos.campaign import Campaign, Outcome
from tests.chaos.clock import say
from tests.chaos.ground import prepare, what_is_missing

if TYPE_CHECKING:
    from collections.abc import Sequence

VIOLATED, MISSING = 1, 2
TASKS_MINUTES = 60
"""How long a run with a number of tasks may take to add them."""

VIOLATIONS = (
    "double_claims",
    "double_runs",
    "open_at_end",
    "stuck_callbacks",
    "slots_leaked",
    "open_tasks",
    "false_successes",
    "illegal_steps",
)
"""What must be 0 in a result."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the run that the command line asks for.

    :param arguments: command line without the program's name; the process's own when absent
    :returns: 0; 1 where an invariant was violated, the Airflow did not start, or a process is left; 2 where a
        service is missing; 128 plus the number of a signal
    """
    options = _parse(arguments)
    if missing := what_is_missing():
        for reason in missing:
            say(reason)
        return MISSING
    interrupts = Interrupts()
    try:
        with interrupts.caught():
            outcome = _run(options, interrupts)
    except LocalModeError as exc:
        say(f"failed: {exc}")
        return VIOLATED
    except InterruptedBySignalError as exc:
        return exc.exit_code
    for finding in outcome.verdict.findings():
        say(finding)
    left = psutil.Process().children(recursive=True)
    for process in left:
        say(f"left behind: {process}")
    print(json.dumps(outcome.result), flush=True)
    return VIOLATED if left or any(outcome.result[name] for name in VIOLATIONS) else 0


def _run(options: argparse.Namespace, interrupts: Interrupts) -> Outcome:
    say(f"the seed is {options.seed}")
    stack = ExitStack()
    try:
        return _run_on(options, stack, interrupts)
    finally:
        with interrupts.held():
            stack.close()


def _run_on(options: argparse.Namespace, stack: ExitStack, interrupts: Interrupts) -> Outcome:
    ground = prepare(stack, interrupts)
    campaign = Campaign(ground, interrupts, seed=options.seed, minutes=options.minutes, tasks=options.tasks)
    if options.keep is not None:
        # The last in is the first out: what the processes have logged by then.
        stack.callback(_keep, campaign.fleet.logs.parent, options.keep)
    outcome = campaign.run(stack)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        with (options.keep / "evidence.json").open("w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(outcome.evidence), file, indent=1)
    return outcome


def _keep(root: Path, target: Path) -> None:
    for name in ("logs", "task-logs"):
        shutil.copytree(root / name, target / name, dirs_exist_ok=True)
    for notes in root.glob("notes.jsonl"):
        shutil.copy(notes, target)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="what is struck, and when; random without it")
    parser.add_argument("--minutes", type=float, help="how long work is added and things are struck (5)")
    parser.add_argument("--tasks", type=int, help="add so many tasks, and end when they have ended")
    parser.add_argument("--keep", type=Path, help="folder for logs and evidence; otherwise nothing is kept")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    if options.minutes is None:
        options.minutes = 5.0 if options.tasks is None else TASKS_MINUTES
    return options


if __name__ == "__main__":
    sys.exit(main())
