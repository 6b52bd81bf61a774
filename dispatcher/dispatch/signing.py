# SPDX-License-Identifier: Apache-2.0
"""Signing: the JWT with which a worker may start a workload, made at the send (rule 5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from airflow.executors.workloads import ExecuteCallback, ExecuteTask

from dispatcher.compat import token_scope
from dispatcher.dispatch.minting import Mint, mint_of
from dispatcher.domain.wire import LAUNCH_TOKEN_CLAIM


@cache
def _scope_of(workload_type: Any) -> str:
    return token_scope(workload_type)  # pydantic takes its time to say that a model has no such attribute


class Signer:
    """Signs workloads as Airflow's own generator does.

    :param generator: returns Airflow's ``JWTGenerator``; called at the first send
    :param valid_for: seconds a sent workload may wait before it can no longer start
    """

    def __init__(self, generator: Callable[[], Any], valid_for: float) -> None:
        self._generator = generator
        self._valid_for = valid_for
        self._minted_for: Any = None
        self._mint: Mint | None = None

    def sign(self, workload: Any, launch_token: str | None) -> Any:
        """Return a copy of ``workload`` with a fresh JWT.

        :param workload: Airflow's workload
        :param launch_token: goes into the JWT; None for connection tests, which have no launch
        """
        claims: dict[str, Any] = {"sub": subject_of(workload), "scope": _scope_of(workload.__class__)}
        if launch_token is not None:
            claims[LAUNCH_TOKEN_CLAIM] = launch_token
        return workload.model_copy(update={"token": self._token(claims)})

    def _token(self, claims: dict[str, Any]) -> str:
        generator = self._generator()
        if generator is not self._minted_for:
            self._mint = mint_of(generator, self._valid_for)
            self._minted_for = generator
        if self._mint is not None:
            return self._mint.make(claims)
        token: str = generator.generate(extras=claims, valid_for=self._valid_for)
        return token


def subject_of(workload: Any) -> str:
    """Return the UUID that the JWT of a workload is about."""
    if isinstance(workload, ExecuteTask):
        return str(workload.ti.id)
    if isinstance(workload, ExecuteCallback):
        return str(workload.callback.id)
    return str(workload.connection_test_id)
