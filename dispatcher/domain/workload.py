# SPDX-License-Identifier: Apache-2.0
"""What routing needs to know of a workload, without Airflow's types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WorkloadKind(StrEnum):
    """What Airflow hands to an executor."""

    TASK = "task"
    CALLBACK = "callback"
    TEST_CONNECTION = "test_connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """The facts that routing rules match on.

    :param kind: what is to be run
    :param queue: the queue the workload asks for, if any
    :param callback: import path of a callback
    :param has_pod_override: the task brings a ``pod_override`` or a ``pod_template_file``
    :param priority: Airflow's priority weight; higher goes first
    """

    kind: WorkloadKind
    queue: str | None = None
    dag_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    pool: str | None = None
    team: str | None = None
    callback: str | None = None
    has_pod_override: bool = False
    priority: int = 0
