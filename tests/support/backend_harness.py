# SPDX-License-Identifier: Apache-2.0
"""What the contract suite needs of each backend, beside the backend itself.

A new implementation adds one harness here or in a module of its own, and one line to ``HARNESSES`` of
``tests/contract/test_backends.py``.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from dispatcher.backends.base import Observation, Outcome, Submission, Underway
from dispatcher.backends.memory import MemoryBackend
from dispatcher.domain.workload import WorkloadKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from dispatcher.backends.base import Backend

WAIT_SECONDS = 20.0


def eventually(happened: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Return what ``happened`` returns as soon as it is true.

    :param what: named in the failure
    :raises AssertionError: it did not become true in time
    """
    deadline = time.monotonic() + seconds
    while not (result := happened()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {seconds:g} s: {what}")
        time.sleep(0.05)
    return result


def make_submission(kind: WorkloadKind = WorkloadKind.TASK, **changes: Any) -> Submission:
    """Return an artefact to be sent, with a token of its own."""
    token = changes.pop("token", None) or str(uuid.uuid4())
    fields: dict[str, Any] = {
        "token": token,
        "kind": kind,
        "queue": "default",
        "payload": f'{{"token": "jwt-of-{token}"}}',
        "workload": None,
    }
    if kind is not WorkloadKind.TEST_CONNECTION:
        fields |= {"dag_id": "contract", "run_id": "manual__2026-01-01T00:00:00+00:00"}
    if kind is WorkloadKind.TASK:
        fields |= {"task_id": "task", "try_number": 1}
    return Submission(**fields | changes)


def submit(backend: Backend, *batch: Submission, seconds: float = WAIT_SECONDS) -> dict[str, Outcome]:
    """Send, and return what became of each token: of what is underway, as soon as it is told."""
    results: dict[str, Any] = dict(backend.submit(batch))

    def settled() -> bool:
        results.update(backend.results())
        return not any(isinstance(results[submission.token], Underway) for submission in batch)

    eventually(settled, "every send is answered", seconds)
    return results


class BackendHarness(ABC):
    """One implementation under test, with a hand on the service behind it.

    :cvar at_most_one: sending a token again makes no second artefact
    :cvar sees_vanished: an artefact that was taken away is reported with ``gone``
    :cvar names_strays: its artefacts can be left behind, and it names them
    :cvar blocking_seconds: no method may take longer
    """

    at_most_one = True
    sees_vanished = True
    names_strays = False
    blocking_seconds = 15.0

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.request = request
        self._opened: list[Backend] = []

    def open(self, scheduler_job_id: str = "1") -> Backend:
        """Return a started backend, as one more scheduler has it."""
        backend = self.create()
        self._opened.append(backend)
        backend.start(scheduler_job_id)
        return backend

    @abstractmethod
    def create(self) -> Backend:
        """Return a backend that is not started."""

    def create_unreachable(self) -> Backend | None:
        """Return a backend whose service does not answer; None where there is no service."""
        return None

    def bad_submission(self) -> Submission | None:
        """Return a workload that can never be sent; None where there is none such."""
        return None

    @abstractmethod
    def count(self, token: str) -> int:
        """Return how many artefacts of the token there are now."""

    @abstractmethod
    def end(self, submission: Submission, *, ok: bool) -> None:
        """Let the artefact end."""

    @abstractmethod
    def vanish(self, submission: Submission) -> None:
        """Take the artefact away behind the backend's back."""

    def close(self) -> None:
        """Stop what was opened."""
        for backend in self._opened:
            backend.stop()


class MemoryHarness(BackendHarness):
    """The reference fake. What one of its objects is sent, the others see too."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._backends: list[MemoryBackend] = []

    def create(self) -> Backend:
        backend = MemoryBackend()
        self._backends.append(backend)
        return backend

    def count(self, token: str) -> int:
        return sum(token in backend.artefacts for backend in self._backends)

    def end(self, submission: Submission, *, ok: bool) -> None:
        reason = None if ok else "exit code 1"
        for backend in self._backends:
            backend.end(Observation(token=submission.token, ok=ok, reason=reason))

    def vanish(self, submission: Submission) -> None:
        for backend in self._backends:
            backend.artefacts.pop(submission.token, None)
            backend.watched.add(submission.token)
            backend.end(Observation(token=submission.token, ok=False, reason="deleted", gone=True))
