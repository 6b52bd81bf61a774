# SPDX-License-Identifier: Apache-2.0
"""How the guarded run of a workload ended, and what is said and counted about it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from workers import metrics

if TYPE_CHECKING:
    from workers.execution import Execution

log = logging.getLogger(__name__)

ALREADY_RUNNING = "already_running"
"""Reason of a duplicate that Airflow itself recognised: the task instance is RUNNING."""

NOT_FOUND = "not_found"
"""Reason for a callback whose row no longer exists."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The workload ran to its end and, if it has a launch, its report was accepted.

    :param exit_code: exit code of the process that ran the task or callback
    :param claimant: nonce of the execution that held the claim, if the workload has a launch
    """

    exit_code: int
    claimant: str | None = None


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
    :param claimant: nonce of the execution that held the claim
    """

    reason: str
    claimant: str | None = None


Outcome: TypeAlias = Completed | Refused | Stopped


class WorkerError(Exception):
    """Base class of the errors that the worker side raises itself."""


class ReportNotDeliveredError(WorkerError):
    """The workload ended, but its result was neither accepted nor refused by the fence (rule 12)."""


class FenceMissingError(WorkerError):
    """``[dispatcher] fence=required``, and the API server has no dispatcher plugin to claim a callback at."""


class ExpiredWorkloadError(WorkerError):
    """The workload waited for longer than its JWT is valid; nothing was run."""


class ExecutionFailedError(WorkerError):
    """An execution of a launch could not claim it, could not go on, or could not tell how it ended.

    Celery stores what it is made of, so that the executor knows whose ending it is, and whether it counts
    (rule 13): the execution may hold the claim, also where the answer to its claim was lost.

    :param text: what went wrong
    :param claimant: nonce of the execution
    """

    def __init__(self, text: str, claimant: str) -> None:
        super().__init__(text, claimant)
        self.text = text

    def __str__(self) -> str:
        """Return what went wrong."""
        return self.text


class InvalidWorkloadError(WorkerError):
    """The payload is not a workload that this version of Airflow can run."""


def refused(execution: Execution, reason: str) -> Refused:
    """Log and count a refused claim, and return it as the outcome (rule 12)."""
    log.warning("%s was refused at the claim (%s); nothing was run.", _start(execution), reason)
    metrics.count(metrics.REFUSED, kind=execution.kind, reason=reason)
    return Refused(reason)


def stopped(execution: Execution, reason: str) -> Stopped:
    """Log and count a stop after the claim, and return it as the outcome (rule 12)."""
    log.warning("%s was stopped by the API server (%s).", _start(execution), reason)
    metrics.count(metrics.STOPPED, kind=execution.kind, reason=reason)
    return Stopped(reason, execution.claimant)


def _start(execution: Execution) -> str:
    text = str(execution)
    return text[0].upper() + text[1:]
