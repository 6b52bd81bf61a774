# SPDX-License-Identifier: Apache-2.0
"""What becomes of each launch when Airflow's stock executors take over."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName, LaunchState

if TYPE_CHECKING:
    from dispatcher.domain.launch import Launch, Subject

CELERY_EXECUTOR = "CeleryExecutor"
KUBERNETES_EXECUTOR = "KubernetesExecutor"


class HandoverVerdict(StrEnum):
    """What to do with a launch."""

    ADOPT = "adopt"
    """A stock executor can take it over as it is: by its Celery id, or by its pod."""
    GIVE_BACK = "give_back"
    """It cannot start any more, or never could: the scheduler is to queue its task anew."""
    LEAVE = "leave"
    """Nothing is to be done: its task has moved on, or Airflow's own checks decide."""


def judge_handover(launch: Launch, subject: Subject | None, *, has_pod: bool) -> HandoverVerdict:
    """Decide what becomes of a task's launch.

    A Celery launch that was submitted has, as far as is known, its message: no missing trace would prove
    otherwise.

    :param launch: its ledger row, not settled
    :param subject: the task instance that carries its token; None if there is none in a live state
    :param has_pod: there is a pod that waits or runs
    """
    if subject is None or subject.token != launch.token:
        return HandoverVerdict.LEAVE
    reachable = has_pod if launch.backend is BackendName.KUBERNETES else True
    if subject.state != "queued":
        return HandoverVerdict.ADOPT if reachable else HandoverVerdict.LEAVE
    if launch.state is LaunchState.ISSUED or not launch.open:
        return HandoverVerdict.GIVE_BACK
    return HandoverVerdict.ADOPT if reachable else HandoverVerdict.GIVE_BACK


def executor_names(default: BackendName) -> dict[BackendName, str | None]:
    """Return the executor that a task instance names so that the right stock executor gets it, by backend.

    :param default: whose stock executor is the first in ``[core] executor``: it needs no name
    """
    names: dict[BackendName, str | None] = {
        BackendName.CELERY: CELERY_EXECUTOR,
        BackendName.KUBERNETES: KUBERNETES_EXECUTOR,
    }
    return names | {default: None}
