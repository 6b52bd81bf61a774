# SPDX-License-Identifier: Apache-2.0
"""Run a workload as a stock worker does: without a launch token."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.executors.base_executor import BaseExecutor
from airflow.sdk.exceptions import TaskAlreadyRunningError

from workers.outcomes import ALREADY_RUNNING, Completed, Outcome, Refused

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload

log = logging.getLogger(__name__)


def run_as_stock(workload: ExecutorWorkload, server: str | None, subprocess_logs_to_stdout: bool) -> Outcome:
    """Hand the workload to Airflow's own ``BaseExecutor.run_workload``.

    :param workload: what the executor sent
    :param server: URL of the execution API; None means the one of the configuration
    :param subprocess_logs_to_stdout: whether a task's log also goes to stdout
    :raises Exception: whatever Airflow's supervisor raises when the workload cannot be run, or failed
    """
    try:
        exit_code = BaseExecutor.run_workload(
            workload, server=server, subprocess_logs_to_stdout=subprocess_logs_to_stdout
        )
    except TaskAlreadyRunningError as exc:
        log.info("%s; this delivery is a duplicate.", exc)
        return Refused(ALREADY_RUNNING)
    return Completed(exit_code)
