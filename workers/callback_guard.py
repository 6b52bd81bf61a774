# SPDX-License-Identifier: Apache-2.0
"""Run a callback under its launch token: claim it, run it, report its result.

Airflow 3.3 has no claim for callbacks, and no version takes their result, so the dispatcher's own endpoints
take both. Against an API server without them (an upgrade in progress) the callback is run as a stock worker
would, unless ``[dispatcher] fence`` is ``required``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from workers.api import open_client
from workers.callback_api import CallbackApi, CallbackRefusedError, NoCallbackEndpointError
from workers.callback_log import CallbackLog
from workers.compat import callback_options, is_outdated, supervisor_token
from workers.outcomes import Completed, ExpiredWorkloadError, FenceMissingError, Outcome, refused, stopped
from workers.stock import run_as_stock

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecuteCallback

    from workers.callback_api import ReportRetries
    from workers.execution import Execution

log = logging.getLogger(__name__)


def run_callback(
    workload: ExecuteCallback, execution: Execution, server: str, retries: ReportRetries | None = None
) -> Outcome:
    """Run a callback of ours to its end; the result is reported before this returns (rule 12).

    :param workload: what the executor sent
    :param execution: this execution of its launch
    :param server: URL of the execution API
    :param retries: how claim and report are repeated; None means the defaults of ``ReportRetries``
    :raises ExpiredWorkloadError: the callback waited for too long, or during an upgrade; nothing was run
    :raises FenceMissingError: the API server has no endpoint to claim at, and the fence is required
    :raises ReportNotDeliveredError: the callback ran, but its result could not be delivered
    :raises Exception: what stopped the callback from being run; it is reported as the callback's failure too
    """
    if is_outdated(workload.token):
        raise ExpiredWorkloadError(f"{execution} was sent by an older version of Airflow; nothing was run")
    api = CallbackApi(server, workload.token, execution, retries)
    try:
        execution_token = api.claim()
    except CallbackRefusedError as exc:
        return refused(execution, exc.reason)
    except NoCallbackEndpointError as exc:
        return _run_without_endpoint(workload, execution, server, exc)
    return _run_claimed(workload, execution, server, api, execution_token)


def _run_claimed(
    workload: ExecuteCallback, execution: Execution, server: str, api: CallbackApi, execution_token: str
) -> Outcome:
    callback_log = CallbackLog(workload.log_path)
    try:
        _supervise(workload, execution, server, execution_token)
    except RuntimeError as exc:
        # The supervisor's way to say that the callback's process ended with an error.
        return _report(execution, api, 1, callback_log.failure() or str(exc))
    except Exception as exc:
        _report(execution, api, 1, f"{type(exc).__name__}: {exc}")
        raise
    return _report(execution, api, 0, None)


def _supervise(workload: ExecuteCallback, execution: Execution, server: str, execution_token: str) -> None:
    from airflow.sdk.execution_time.callback_supervisor import supervise_callback

    token = supervisor_token(workload.token, execution_token)
    client = open_client(server, token, execution)
    try:
        supervise_callback(
            id=workload.callback.id,
            callback_path=workload.callback.data.get("path", ""),
            callback_kwargs=workload.callback.data.get("kwargs", {}),
            dag_rel_path=workload.dag_rel_path,
            log_path=workload.log_path,
            bundle_info=workload.bundle_info,
            token=token,
            server=server,
            client=client,
            **callback_options(workload),
        )
    finally:
        client.close()


def _report(execution: Execution, api: CallbackApi, exit_code: int, output: str | None) -> Outcome:
    try:
        api.report("failed" if exit_code else "success", output)
    except CallbackRefusedError as exc:
        return stopped(execution, exc.reason)
    return Completed(exit_code, execution.claimant)


def _run_without_endpoint(
    workload: ExecuteCallback, execution: Execution, server: str, cause: NoCallbackEndpointError
) -> Outcome:
    from airflow.configuration import conf

    from dispatcher.settings import FenceMode, load_fence_mode

    if load_fence_mode(conf) is FenceMode.REQUIRED:
        raise FenceMissingError(
            f"The API server has no dispatcher plugin to claim {execution} at, and [dispatcher] fence is "
            "required. Install the plugin on the API server, or set fence to presented."
        ) from cause
    log.warning("The API server has no dispatcher plugin: %s is run without a claim.", execution)
    return run_as_stock(workload, server, subprocess_logs_to_stdout=False)
