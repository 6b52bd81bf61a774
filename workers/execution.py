# SPDX-License-Identifier: Apache-2.0
"""What a worker knows about the launch it executes: its token, its subject, and its own nonce."""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatcher.domain.pod_claimant import POD_UID_VARIABLE, nonce_in_pod
from dispatcher.domain.wire import LAUNCH_CLAIMANT_HEADER, LAUNCH_TOKEN_CLAIM, LAUNCH_TOKEN_HEADER
from dispatcher.domain.worker_claimant import WORKER_VARIABLE, process_of_worker

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecuteCallback, ExecuteTask


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one launch (rule 7).

    :param token: the launch token, as the workload JWT carries it
    :param claimant: nonce of this execution: one Celery delivery or one pod start
    :param kind: ``task`` or ``callback``
    :param subject_id: UUID of the task instance or of the callback
    """

    token: str
    claimant: str
    kind: str
    subject_id: str

    @property
    def headers(self) -> dict[str, str]:
        """The request headers that present this launch to the fence."""
        return {LAUNCH_TOKEN_HEADER: self.token, LAUNCH_CLAIMANT_HEADER: self.claimant}

    def __str__(self) -> str:
        """Name the launch and its subject in a log line."""
        return f"launch {self.token} of {self.kind} {self.subject_id}"


def read_launch_token(workload_jwt: str) -> str | None:
    """Return the claim ``launch_token`` of a workload JWT, or None where it has none.

    The signature is not verified: the worker has no key, and the API server judges the token anyway. What
    is no JWT at all, or carries no text in the claim, is not a launch of ours.

    :param workload_jwt: the JWT of the workload, possibly empty
    """
    token = claims_of(workload_jwt).get(LAUNCH_TOKEN_CLAIM)
    return token if isinstance(token, str) else None


def is_expired(workload_jwt: str) -> bool:
    """Whether the time is over until which a workload JWT may be used, by the clock of this machine.

    :param workload_jwt: the JWT of the workload, possibly empty
    """
    expiry = claims_of(workload_jwt).get("exp")
    return isinstance(expiry, (int, float)) and expiry <= time.time()


def claims_of(workload_jwt: str) -> dict[str, Any]:
    """Return the claims of a workload JWT, not verified; none if it is no JWT.

    :param workload_jwt: the JWT of the workload, possibly empty
    """
    # Decoded by hand: a JWT library imports all of cryptography, a tenth of a second in every pod.
    _, _, signed = workload_jwt.partition(".")
    encoded, _, _ = signed.partition(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}


def execution_of_task(workload: ExecuteTask) -> Execution | None:
    """Return a new execution of the task's launch, or None if the stock executor sent the workload."""
    return _launch(workload.token, "task", str(workload.ti.id))


def execution_of_callback(workload: ExecuteCallback) -> Execution | None:
    """Return a new execution of the callback's launch, or None if the stock executor sent the workload."""
    return _launch(workload.token, "callback", workload.callback.id)


def _launch(workload_jwt: str, kind: str, subject_id: str) -> Execution | None:
    token = read_launch_token(workload_jwt)
    if token is None:
        return None
    return Execution(token=token, claimant=_nonce(), kind=kind, subject_id=subject_id)


def _nonce() -> str:
    start = str(uuid.uuid4())
    if pod_uid := os.environ.get(POD_UID_VARIABLE):
        return nonce_in_pod(pod_uid, start)
    if worker := os.environ.get(WORKER_VARIABLE):
        return process_of_worker(worker, os.getpid()) + start
    return start
