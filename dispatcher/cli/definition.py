# SPDX-License-Identifier: Apache-2.0
"""The commands and their arguments, as Airflow's command line asks for them.

Airflow imports this on every command, so what a command needs is imported when it runs.
"""

# Airflow's own helpers for arguments are not annotated.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
    positive_int,
)

from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState

DEFAULT_LIMIT = 50


def parse_states(text: str) -> list[LaunchState]:
    """Read a comma list of launch states.

    :raises argparse.ArgumentTypeError: names the unknown state and the allowed ones
    """
    states = []
    for name in (part.strip().lower() for part in text.split(",")):
        try:
            states.append(LaunchState(name))
        except ValueError as exc:
            allowed = ", ".join(LaunchState)
            raise argparse.ArgumentTypeError(f"unknown state {name!r}; the states are: {allowed}") from exc
    return states


ARG_STATE = Arg(
    ("--state",),
    help="Only launches in this state; a comma list, or given more than once, for several",
    type=parse_states,
    action="append",
    metavar="STATE",
)
ARG_OPEN = Arg(("--open",), help="Only launches that may still run or are running", action="store_true")
ARG_DAG_ID = Arg(("--dag-id",), help="Only launches of this DAG")
ARG_TASK_ID = Arg(("--task-id",), help="Only launches of this task")
ARG_RUN_ID = Arg(("--run-id",), help="Only launches of this DAG run")
ARG_KIND = Arg(("--kind",), help="Only launches of this kind", choices=[kind.value for kind in LaunchKind])
ARG_BACKEND = Arg(
    ("--backend",), help="Only launches on this backend", choices=[name.value for name in BackendName]
)
ARG_LIMIT = Arg(
    ("--limit",),
    help=f"How many launches to show at most, newest first (default: {DEFAULT_LIMIT})",
    type=positive_int(allow_zero=False),
    default=DEFAULT_LIMIT,
)

ARG_TOKENS = Arg(("tokens",), help="Launch tokens", nargs="+", metavar="TOKEN")
ARG_REASON = Arg(("--reason",), help="Why, for those who will ask")

ARG_DEFAULT = Arg(
    ("--default",),
    help="Which stock executor is the first in the [core] executor to come (default: celery); tasks of the "
    "other one name it from now on",
    choices=[name.value for name in BackendName],
    default=BackendName.CELERY.value,
)
ARG_DRY_RUN = Arg(("--dry-run",), help="Say what would be done, and do nothing", action="store_true")
ARG_FORCE = Arg(("--force",), help="Go on although a scheduler is alive", action="store_true")

HANDOVER_COMMAND = ActionCommand(
    name="handover",
    help="Prepare what is queued and runs for Airflow's stock executors, before their scheduler starts",
    func=lazy_load_command("dispatcher.cli.handover.handover"),
    args=(ARG_DEFAULT, ARG_DRY_RUN, ARG_FORCE, ARG_VERBOSE),
)

LAUNCHES_COMMANDS = (
    ActionCommand(
        name="list",
        help="List launches, newest first",
        func=lazy_load_command("dispatcher.cli.launches.launches_list"),
        args=(
            ARG_STATE,
            ARG_OPEN,
            ARG_DAG_ID,
            ARG_TASK_ID,
            ARG_RUN_ID,
            ARG_KIND,
            ARG_BACKEND,
            ARG_LIMIT,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    ),
    ActionCommand(
        name="revoke",
        help="Stop launches, whether a worker has claimed them or not; their tasks and callbacks fail",
        func=lazy_load_command("dispatcher.cli.launches.launches_revoke"),
        args=(ARG_TOKENS, ARG_REASON, ARG_VERBOSE),
    ),
)


def get_dispatcher_cli_commands() -> list[CLICommand]:
    """Return the group ``airflow dispatcher``."""
    return [
        GroupCommand(
            name="dispatcher",
            help="Look into the hybrid dispatcher",
            subcommands=(
                GroupCommand(
                    name="launches", help="Look at launches, or stop them", subcommands=LAUNCHES_COMMANDS
                ),
                HANDOVER_COMMAND,
            ),
        )
    ]
