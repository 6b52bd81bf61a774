# SPDX-License-Identifier: Apache-2.0
"""Put the guard into a Celery worker: importing this module is all it takes.

``workers.celery_app`` imports it; under ``airflow celery worker`` the worker does, by ``[celery]
extra_celery_config={"imports": ["workers.celery_guard"]}``. When the worker starts, the stock task
``execute_workload`` is replaced by one of the same name and payload that runs workloads under the guard.
Elsewhere (a scheduler with the same configuration) nothing happens.
"""

from __future__ import annotations

import logging
import os
import uuid
from typing import Any

from airflow.configuration import conf
from celery import current_task
from celery.exceptions import Ignore
from celery.signals import celeryd_init

import workers.consumption  # noqa: F401  # its import registers a command of remote control
from dispatcher.domain.worker_claimant import WORKER_VARIABLE
from workers.outcomes import ExecutionFailedError, ExpiredWorkloadError, Refused
from workers.payload import read_workload

log = logging.getLogger(__name__)

TASK_NAME = "execute_workload"
"""Name of the stock provider's Celery task, which ours keeps."""

REQUEST = "workers.celery_request:NamingRequest"
"""What a worker knows of one delivery; see there."""


def install_guard(instance: Any, **_: Any) -> None:
    """Replace the stock task in the app of the worker that is starting.

    Registering a second task of one name is ignored by Celery, so the stock one is taken out first.
    ``track_started`` is off: STARTED is no evidence of a claim, and a duplicate delivery would overwrite a
    stored result with it (rule 12). The worker gets a name, by which its processes are told apart.

    :param instance: the Celery worker
    """
    app = instance.app
    if TASK_NAME in app.tasks:
        app.tasks.unregister(TASK_NAME)
    os.environ[WORKER_VARIABLE] = str(uuid.uuid4())
    app.task(name=TASK_NAME, track_started=False, shared=False, Request=REQUEST)(execute_workload)


def execute_workload(payload: str) -> dict[str, str] | None:
    """Run one delivered message; each delivery is a claimant of its own.

    :param payload: JSON of the workload
    :returns: the result that Celery stores: it names the claimant, which proves whose ending it is (rule 13)
    :raises Ignore: the claim was refused; the message is acknowledged and no result is stored
    :raises InvalidWorkloadError: the payload is not a workload
    :raises ExpiredWorkloadError: the workload waited for too long; nothing was run
    :raises ExecutionFailedError: whatever else went wrong with a launch
    :raises Exception: whatever else the guard raises; Celery stores it as FAILURE
    """
    from workers.guard import run_workload

    workload = read_workload(payload)
    kind = type(workload).__name__
    log.info("[%s] Running %s %s", current_task.request.id, kind, workload.display_name)
    nonces: list[str] = []
    try:
        outcome = run_workload(workload, subprocess_logs_to_stdout=_logs_to_stdout(), on_claim=nonces.append)
    except ExpiredWorkloadError:
        raise
    except Exception as exc:
        if not nonces:
            raise
        raise ExecutionFailedError(f"{type(exc).__name__}: {exc}", nonces[0]) from exc
    log.info("[%s] %s", current_task.request.id, outcome)
    if isinstance(outcome, Refused):
        raise Ignore
    return None if outcome.claimant is None else {"claimant": outcome.claimant}


def _logs_to_stdout() -> bool:
    """Return ``[celery] task_logs_to_stdout``, or ``[logging] task_logs_to_stdout`` where that is not set."""
    own = conf.get("celery", "task_logs_to_stdout", fallback="")
    section = "celery" if own and own.lower() != "none" else "logging"
    return conf.getboolean(section, "task_logs_to_stdout", fallback=False)


celeryd_init.connect(install_guard)
