# SPDX-License-Identifier: Apache-2.0
"""Three starts that must be refused, each shown to change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.domain.wire import RefusalReason
from dispatcher.local.errors import LocalModeError
from dispatcher.local.tour.expectations import STANDBY
from dispatcher.local.tour.pods import PodWatcher
from dispatcher.local.tour.refusals import LogReader, refusal_in
from dispatcher.local.tour.stale import StalledScheduler
from dispatcher.local.tour.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.domain.launch import Launch
    from dispatcher.example_dags.journal import Entry
    from dispatcher.local.progress import Progress
    from dispatcher.local.tour.run import Run
    from dispatcher.local.tour.system import System

SERVED_QUEUE = "default"
REFUSAL_SECONDS = 60
CONFLICT = 409


@dataclass(frozen=True, slots=True)
class _View:
    """What no refused start may change."""

    task_state: str | None
    launches: list[Launch]
    entries: list[Entry]


class Provocations:
    """Provokes refusals about the sensor of a run.

    :param run: the run; its sensor has had two launches
    :param system: the running Airflow
    :param progress: where to say what was refused
    """

    def __init__(self, run: Run, system: System, progress: Progress) -> None:
        self._run = run
        self._system = system
        self._progress = progress
        self._scheduler = StalledScheduler()

    def old_message(self, launch: Launch) -> None:
        """Send the Celery message of a launch that is over; the worker must refuse it.

        :raises LocalModeError: it was not refused, or it changed something
        """
        log = LogReader(self._system.worker_log)

        def provoke() -> str | None:
            self._scheduler.send_message(launch, SERVED_QUEUE)
            return wait_for(
                f"the Celery worker's refusal of launch {launch.token}",
                lambda: refusal_in(log.read(), launch.token),
                REFUSAL_SECONDS,
            )

        self._expect(f"an old Celery message of {STANDBY}", launch, RefusalReason.SUPERSEDED, provoke)

    def old_pod(self, launch: Launch) -> None:
        """Create the pod of a launch that is over; it must refuse to run and exit 0.

        :raises LocalModeError: it did not, or it changed something
        """
        watcher = PodWatcher(self._system.namespace, launch.token)

        def provoke() -> str | None:
            artefact = self._scheduler.create_pod(launch)
            pod = watcher.wait_for_end()
            self._scheduler.remove_pod(artefact)
            if pod.exit_code:
                raise LocalModeError(f"the old pod ended with exit code {pod.exit_code}; its log:\n{pod.log}")
            return refusal_in(pod.log, launch.token)

        self._expect(f"an old pod of {STANDBY}", launch, RefusalReason.SUPERSEDED, provoke)

    def second_claimant(self, launch: Launch) -> None:
        """Claim a launch that a worker runs; the claim must be refused and the worker go on.

        :raises LocalModeError: it was not refused, or it changed something
        """

        def provoke() -> str | None:
            answer = self._scheduler.claim(launch)
            if answer.status_code != CONFLICT:
                raise LocalModeError(f"the second claim was answered with HTTP {answer.status_code}")
            detail = answer.json().get("detail")
            return detail.get("reason") if isinstance(detail, dict) else None

        self._expect(f"a second claimant of {STANDBY}", launch, RefusalReason.CONSUMED, provoke)

    def _expect(
        self, what: str, launch: Launch, reason: RefusalReason, provoke: Callable[[], str | None]
    ) -> None:
        before = self._view()
        given = provoke()
        if given != reason:
            raise LocalModeError(f"{what} was refused for {given}, not for {reason}")
        if self._view() != before:
            raise LocalModeError(f"{what} changed something:\nbefore {before}\nafter {self._view()}")
        self._progress.say(f"refused: {reason.value} - {what}, launch {launch.token}; nothing changed")

    def _view(self) -> _View:
        states = [task.state for task in self._run.tasks() if task.task_id == STANDBY]
        return _View(states[0], self._run.standby_launches(), self._run.entries())
