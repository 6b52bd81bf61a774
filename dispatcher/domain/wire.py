# SPDX-License-Identifier: Apache-2.0
"""What workers, API server and executor share: headers, the JWT claim, refusal reasons, an exit code.

All sides import them from here, so that a name cannot differ between the one that sends and the one
that reads. Pure: no import of Airflow.
"""

from __future__ import annotations

from enum import StrEnum

LAUNCH_TOKEN_HEADER = "Airflow-Launch-Token"
"""Request header with the launch token (a UUID) the worker was started for."""

LAUNCH_CLAIMANT_HEADER = "Airflow-Launch-Claimant"
"""Request header with the nonce of one execution: one Celery delivery or one pod start."""

LAUNCH_TOKEN_CLAIM = "launch_token"
"""Claim of the workload JWT, and of the execution JWT after the claim, with the launch token."""


RUNNING_COMMAND = "dispatcher_running"
"""Remote control of Celery workers: which of the task ids ``ids`` one has, whatever other deliveries did."""


EXIT_EXPIRED = 75
"""Exit code of a pod whose workload token had run out before its claim: sysexits' "try again later"."""


class RefusalReason(StrEnum):
    """Why the fence refuses a call: the value of ``detail.reason`` in its answer.

    The first four come with status 409, ``launch_token_invalid`` with status 400.
    """

    SUPERSEDED = "launch_superseded"
    CONSUMED = "launch_consumed"
    REVOKED = "launch_revoked"
    REQUIRED = "launch_required"
    TOKEN_INVALID = "launch_token_invalid"
