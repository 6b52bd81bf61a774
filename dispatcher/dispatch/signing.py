# SPDX-License-Identifier: Apache-2.0
"""Signing: the JWT with which a worker may start a workload, made at the send (rule 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow.executors.workloads import ExecuteCallback, ExecuteTask

from dispatcher.compat import token_scope
from dispatcher.domain.wire import LAUNCH_TOKEN_CLAIM


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs workloads with Airflow's own generator.

    :param generator: returns Airflow's ``JWTGenerator``; called at the first send
    :param valid_for: seconds a sent workload may wait before it can no longer start
    """

    generator: Callable[[], Any]
    valid_for: float

    def sign(self, workload: Any, launch_token: str | None) -> Any:
        """Return a copy of ``workload`` with a fresh JWT.

        :param workload: Airflow's workload
        :param launch_token: goes into the JWT; None for connection tests, which have no launch
        """
        claims: dict[str, Any] = {"sub": subject_of(workload), "scope": token_scope(workload)}
        if launch_token is not None:
            claims[LAUNCH_TOKEN_CLAIM] = launch_token
        token = self.generator().generate(extras=claims, valid_for=self.valid_for)
        return workload.model_copy(update={"token": token})


def subject_of(workload: Any) -> str:
    """Return the UUID that the JWT of a workload is about."""
    if isinstance(workload, ExecuteTask):
        return str(workload.ti.id)
    if isinstance(workload, ExecuteCallback):
        return str(workload.callback.id)
    return str(workload.connection_test_id)
