# SPDX-License-Identifier: Apache-2.0
"""What a Celery worker stores of a delivery whose process was killed: it tells which process that was.

Celery stores such an end in the worker's main process, under the id that all deliveries of a message share.
The claim may be another delivery's, so that the end counts only if it names the process that holds the claim
(rule 13).
"""

from __future__ import annotations

import os
from typing import Any

from celery.exceptions import WorkerLostError
from celery.worker.request import Request

from dispatcher.domain.worker_claimant import WORKER_VARIABLE, process_of_worker


class ProcessLostError(WorkerLostError):  # type: ignore[misc]  # Celery has no types
    """The process in which a workload was run, or was to be run, was ended from outside.

    :param text: how
    :param claimant: how the nonces of its executions begin
    """

    def __init__(self, text: str, claimant: str) -> None:
        super().__init__(text, claimant)
        self.text = text

    def __str__(self) -> str:
        """Return how it was ended."""
        return self.text


class NamingRequest(Request):  # type: ignore[misc]  # Celery has no types
    """One delivery, as the worker's main process knows it."""

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """See Celery's ``Request``: the end of a process gets its name.

        :param exc_info: what happened
        """
        error = exc_info.exception
        error = getattr(error, "exc", error)  # Celery wraps it to keep its traceback
        if isinstance(error, WorkerLostError) and (process := self._process()):
            exc_info.exception = ProcessLostError(str(error), process)
        return super().on_failure(exc_info, *args, **kwargs)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """See Celery's ``Request``: it kills a process whose time is over.

        :param soft: the process is only told so
        :param timeout: seconds
        """
        super().on_timeout(soft, timeout)
        if not soft and (process := self._process()):
            error = ProcessLostError(f"the hard time limit of {timeout} s is over", process)
            self.task.backend.mark_as_failure(self.id, error, store_result=self.store_errors)

    def _process(self) -> str | None:
        worker = os.environ.get(WORKER_VARIABLE)
        return process_of_worker(worker, self.worker_pid) if worker and self.worker_pid else None
