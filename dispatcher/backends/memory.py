# SPDX-License-Identifier: Apache-2.0
"""A backend without a service, for tests of whatever stands on the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.backends.base import (
    Artefact,
    Findings,
    Observation,
    Outcome,
    Sent,
    Stray,
    Submission,
    SubmitResult,
    Underway,
)
from dispatcher.domain.lifecycle import BackendName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class MemoryBackend:
    """Keeps what it is sent in a table; the test says what happens to it.

    :param name: which backend it stands for
    """

    def __init__(self, name: BackendName = BackendName.CELERY) -> None:
        self._name = name
        self.scheduler_job_id: str | None = None
        self.artefacts: dict[str, Submission] = {}
        self.sends: list[str] = []
        self.watched: set[str] = set()
        self.revoked: set[str] = set()
        self.released: set[str] = set()
        self.removals: list[str] = []
        self.answers: dict[str, SubmitResult] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.missing: str | None = None
        self.waiting: dict[str, str] = {}
        self.lost: set[str] = set()
        self.looked_for: dict[str, str] = {}
        self.forsaken: dict[str, str] = {}
        self.left_behind: dict[str, Stray] = {}
        self._endings: dict[str, Observation] = {}

    @property
    def name(self) -> BackendName:
        """Which backend this stands for."""
        return self._name

    def start(self, scheduler_job_id: str) -> None:
        """Remember the owner."""
        self.scheduler_job_id = scheduler_job_id

    def problem(self) -> str | None:
        """Return what the test set as missing."""
        return self.missing

    def submit(self, batch: Iterable[Submission]) -> Mapping[str, SubmitResult]:
        """Keep what is sent, or give the answer that the test prepared for its token."""
        results: dict[str, SubmitResult] = {}
        for submission in batch:
            self.sends.append(submission.token)
            answer = self.answers.get(submission.token, Sent(submission.token))
            if isinstance(answer, (Sent, Underway)):
                self.artefacts[submission.token] = submission
            results[submission.token] = answer
        return results

    def results(self) -> Mapping[str, Outcome]:
        """Return, once, what the test prepared of sends that it answered with ``Underway``."""
        told, self.outcomes = self.outcomes, {}
        return told

    def watch(self, artefacts: Collection[Artefact]) -> None:
        """Remember whose endings to tell."""
        self.watched.update(artefact.token for artefact in artefacts)
        self.released -= self.watched

    def end(self, observation: Observation) -> None:
        """Let an artefact end."""
        self._endings[observation.token] = observation

    def observe(self) -> Sequence[Observation]:
        """Return the endings of everything that was sent or is watched."""
        known = (self.watched | self.artefacts.keys()) - self.released
        return [ending for token, ending in self._endings.items() if token in known]

    def why_waiting(self, token: str) -> str | None:
        """Return the reason that the test set."""
        return self.waiting.get(token)

    def look_for(self, waiting: Mapping[str, str]) -> Findings:
        """Remember who is waited for; return what the test set as lost, once, and why the others wait."""
        self.looked_for = dict(waiting)
        lost = frozenset(self.lost & waiting.keys())
        self.lost -= lost
        return Findings(lost, {token: why for token, why in self.waiting.items() if token in waiting})

    def abandoned(self, claimed: Collection[str]) -> Mapping[str, str]:
        """Return what the test set as run by nobody any more."""
        return {token: why for token, why in self.forsaken.items() if token in claimed}

    def revoke(self, artefacts: Collection[Artefact]) -> None:
        """Remember what was stopped, and take it away."""
        self.revoked.update(artefact.token for artefact in artefacts)
        self.remove(artefacts)

    def remove(self, artefacts: Collection[Artefact]) -> None:
        """Forget artefacts."""
        for artefact in artefacts:
            self.artefacts.pop(artefact.token, None)
            self.removals.append(artefact.token)
            self.left_behind.pop(artefact.token, None)
            self.watched.discard(artefact.token)
            self._endings.pop(artefact.token, None)

    def release(self, tokens: Collection[str]) -> None:
        """Tell no more of artefacts, and leave them where they are."""
        self.watched.difference_update(tokens)
        self.released.update(tokens)

    def strays(self) -> Sequence[Stray]:
        """Return what the test left behind."""
        return list(self.left_behind.values())

    def stop(self) -> None:
        """Nothing to end."""
