# SPDX-License-Identifier: Apache-2.0
"""Run a workload under its launch token: present the token, and understand a refusal.

A workload whose JWT carries the claim ``launch_token`` was sent by the dispatcher's executor: it is run
with the headers that the fence judges. Any other was sent by a stock executor and is run as stock Airflow
would, without the headers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow.executors.base_executor import get_execution_api_server_url
from airflow.executors.workloads import ExecuteCallback, ExecuteTask
from airflow.sdk.api.client import ServerResponseError
from airflow.sdk.exceptions import TaskAlreadyRunningError

from workers import metrics
from workers.api import open_client, raise_if_expired, refusal_reason
from workers.execution import execution_of_callback, execution_of_task
from workers.outcomes import (
    ALREADY_RUNNING,
    Completed,
    Outcome,
    ReportNotDeliveredError,
    refused,
    stopped,
)
from workers.stock import run_as_stock
from workers.task_calls import TaskCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.executors.workloads import ExecutorWorkload

    from workers.execution import Execution


def run_workload(
    workload: ExecutorWorkload,
    *,
    server: str | None = None,
    subprocess_logs_to_stdout: bool = False,
    on_claim: Callable[[str], object] | None = None,
) -> Outcome:
    """Run one workload to its end and return how it ended.

    :param workload: what the executor sent
    :param server: URL of the execution API; None means the one of the configuration
    :param subprocess_logs_to_stdout: whether a task's log also goes to stdout
    :param on_claim: is called with the nonce of this execution before it claims its launch
    :raises ExpiredWorkloadError: the workload waited for too long; nothing was run
    :raises ReportNotDeliveredError: the workload ended, but its result could not be delivered
    :raises FenceMissingError: a callback cannot be claimed and ``[dispatcher] fence`` is ``required``
    :raises Exception: whatever Airflow's supervisor raises when the workload cannot be run
    """
    if isinstance(workload, ExecuteTask) and (execution := execution_of_task(workload)):
        _prepare_process(workload)
        _tell(execution, on_claim)
        return run_task(
            workload, execution, server or get_execution_api_server_url(), subprocess_logs_to_stdout
        )
    if isinstance(workload, ExecuteCallback) and (execution := execution_of_callback(workload)):
        from workers.callback_guard import run_callback

        _prepare_process(workload)
        _tell(execution, on_claim)
        return run_callback(workload, execution, server or get_execution_api_server_url())
    return run_as_stock(workload, server, subprocess_logs_to_stdout)


def run_task(
    workload: ExecuteTask, execution: Execution, server: str, subprocess_logs_to_stdout: bool
) -> Outcome:
    """Run a task of ours; see :func:`run_workload` for parameters and errors."""
    from airflow.sdk.execution_time.supervisor import supervise_task

    calls = TaskCalls(execution.subject_id)
    client = open_client(server, workload.token, execution, on_response=calls.note)
    try:
        exit_code = supervise_task(
            ti=workload.ti,  # type: ignore[arg-type]  # the same duck typing as in BaseExecutor.run_workload
            bundle_info=workload.bundle_info,
            dag_rel_path=workload.dag_rel_path,
            token=workload.token,
            server=server,
            log_path=workload.log_path,
            subprocess_logs_to_stdout=subprocess_logs_to_stdout,
            client=client,
            sentry_integration=workload.sentry_integration,
        )
    except TaskAlreadyRunningError:
        return refused(execution, ALREADY_RUNNING)
    except ServerResponseError as exc:
        reason = refusal_reason(exc.response)
        if reason is None:
            if not calls.claimed:
                raise_if_expired(exc, workload.token, execution)
            raise
        return stopped(execution, reason) if calls.claimed else refused(execution, reason)
    finally:
        client.close()
    return _outcome(execution, calls, exit_code)


def _outcome(execution: Execution, calls: TaskCalls, exit_code: int) -> Outcome:
    if calls.reported:
        return Completed(exit_code, execution.claimant)
    if calls.stop_reason is not None:
        return stopped(execution, calls.stop_reason)
    raise ReportNotDeliveredError(
        f"{execution} ended with exit code {exit_code}, but its state was not accepted"
    )


def _tell(execution: Execution, on_claim: Callable[[str], object] | None) -> None:
    # Before the claim: its answer may be lost, and this execution holds it all the same.
    if on_claim is not None:
        on_claim(execution.claimant)


def _prepare_process(workload: ExecuteTask | ExecuteCallback) -> None:
    metrics.initialize()
    # setproctitle crashes some macOS versions, and Airflow leaves it out there too.
    if sys.platform != "darwin":
        from setproctitle import setproctitle

        setproctitle(f"airflow supervisor: {workload.display_name}")
