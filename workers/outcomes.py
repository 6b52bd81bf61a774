# SPDX-License-Identifier: Apache-2.0
"""How the guarded run of a workload ended, and what is said and counted about it.

Airflow's counters are used, so they go wherever ``[metrics]`` sends the others:

* ``dispatcher.launch.refused``, tags ``kind`` and ``reason``: a claim was refused, nothing was run;
* ``dispatcher.launch.stopped``, tags ``kind`` and ``reason``: told to stop after the claim.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from workers.execution import Execution

log = logging.getLogger(__name__)

REFUSED_COUNTER = "dispatcher.launch.refused"
STOPPED_COUNTER = "dispatcher.launch.stopped"

ALREADY_RUNNING = "already_running"
"""Reason of a duplicate that Airflow itself recognised: the task instance is RUNNING."""

NOT_FOUND = "not_found"
"""Reason for a callback whose row no longer exists."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The workload ran to its end and, if it has a launch, its report was accepted.

    :param exit_code: exit code of the process that ran the task or callback
    """

    exit_code: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim was refused: this execution is a duplicate or out of date, and nothing was run.

    :param reason: a value of ``RefusalReason``, ``already_running`` or ``not_found``
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The API server told the worker, after the claim, that this launch is to stop.

    :param reason: a value of ``RefusalReason``, or the reason that Airflow gave
    """

    reason: str


Outcome: TypeAlias = Completed | Refused | Stopped


class WorkerError(Exception):
    """Base class of the errors that the worker side raises itself."""


class ReportNotDeliveredError(WorkerError):
    """The workload ended, but its result was neither accepted nor refused by the fence (rule 12)."""


class FenceMissingError(WorkerError):
    """``[dispatcher] fence=required``, and the API server has no dispatcher plugin to claim a callback at."""


class InvalidWorkloadError(WorkerError):
    """The payload is not a workload that this version of Airflow can run."""


def refused(execution: Execution, reason: str) -> Refused:
    """Log and count a refused claim, and return it as the outcome (rule 12)."""
    log.warning("%s was refused at the claim (%s); nothing was run.", _start(execution), reason)
    _count(REFUSED_COUNTER, execution, reason)
    return Refused(reason)


def stopped(execution: Execution, reason: str) -> Stopped:
    """Log and count a stop after the claim, and return it as the outcome (rule 12)."""
    log.warning("%s was stopped by the API server (%s).", _start(execution), reason)
    _count(STOPPED_COUNTER, execution, reason)
    return Stopped(reason)


def _start(execution: Execution) -> str:
    text = str(execution)
    return text[0].upper() + text[1:]


def _count(counter: str, execution: Execution, reason: str) -> None:
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    # Supervisors have no metrics client of their own; only the task process sets one up.
    stats.initialize(
        factory=stats_utils.get_stats_factory(),
        export_legacy_names=conf.getboolean("metrics", "legacy_names_on"),
    )
    stats.incr(counter, tags={"kind": execution.kind, "reason": reason})
