# SPDX-License-Identifier: Apache-2.0
"""Everything that differs between Airflow versions for workers.

``dispatcher.compat`` is the same for the other side. It imports the models of the metadata database, which
have no place in a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.api.client import Client

from workers.execution import claims_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.executors.workloads import ExecuteCallback

SUPERVISOR_STARTS_CALLBACKS = hasattr(Client, "callbacks")
"""Whether the supervisor itself exchanges the JWT of a callback for a token to run it with (3.4)."""


def supervisor_token(workload_jwt: str, execution_token: str) -> str:
    """Return the JWT with which the supervisor of a callback that was claimed is to begin.

    3.4's supervisor claims once more, which the fence answers as a repeat of the same claimant (rule 19).

    :param workload_jwt: what the callback was sent with
    :param execution_token: what the claim was answered with
    """
    return workload_jwt if SUPERVISOR_STARTS_CALLBACKS else execution_token


def is_outdated(workload_jwt: str) -> bool:
    """Whether a callback was signed by an Airflow before 3.4, so that 3.4's supervisor cannot start it.

    :param workload_jwt: what the callback was sent with
    """
    return SUPERVISOR_STARTS_CALLBACKS and claims_of(workload_jwt).get("scope") == "workload"


def acknowledges_stop(report: Mapping[str, Any]) -> bool:
    """Whether a report of a state says only that the task has ended as the server ordered.

    3.4's supervisor sends it after a heartbeat or a report that was refused. It is no result of the task.

    :param report: the body of the call
    """
    return report.get("state") == "server_terminated"


def callback_options(workload: ExecuteCallback) -> dict[str, Any]:
    """Return what only some versions tell the supervisor of a callback: 3.4 may have encoded its arguments.

    :param workload: what the executor sent
    """
    encoding = workload.callback.data.get("kwargs_encoding")
    return {"callback_kwargs_encoding": encoding} if encoding else {}
