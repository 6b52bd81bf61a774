# SPDX-License-Identifier: Apache-2.0
"""One run of the example DAG, and what can be seen of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.example_dags import journal
from dispatcher.local.errors import LocalModeError
from dispatcher.local.tour import records
from dispatcher.local.tour.expectations import DAG_ID, STANDBY, SUCCESS, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.domain.launch import Launch
    from dispatcher.example_dags.journal import Entry
    from dispatcher.local.progress import Progress
    from dispatcher.local.tour.rest import RestApi, Task

_BAD_STATES = frozenset({"failed", "upstream_failed", "up_for_retry", "skipped", "removed"})


class Run:
    """A run that was just triggered.

    :param api: Airflow's REST API
    :param journal_path: where the example's bodies note that they ran
    :param progress: where to say which tasks finished
    """

    def __init__(self, api: RestApi, journal_path: Path, progress: Progress) -> None:
        self._api = api
        self._journal = journal_path
        self._progress = progress
        self._before = records.newest_sequence()
        self._told: set[str] = set()
        self.run_id = f"tour-{datetime.now(tz=UTC):%H%M%S}"
        api.trigger(DAG_ID, self.run_id)

    def tasks(self) -> list[Task]:
        """Return the task instances, and say which of them have finished since the last call.

        :raises LocalModeError: one of them did not end well
        """
        tasks = self._api.tasks(DAG_ID, self.run_id)
        for task in tasks:
            if task.state in _BAD_STATES:
                raise LocalModeError(f"task {task} is {task.state}")
            if task.state == SUCCESS and task.id not in self._told:
                self._told.add(task.id)
                self._progress.say(f"task {task} succeeded")
        return tasks

    def state(self) -> str:
        """Return Airflow's state of the run."""
        return self._api.run_state(DAG_ID, self.run_id)

    def entries(self) -> list[Entry]:
        """Return what the bodies noted."""
        return journal.read(self._journal)

    def noted(self, subject: str) -> bool:
        """Say whether the body of a task or callback noted that it ran."""
        return any(entry.subject == subject for entry in self.entries())

    def launches(self) -> list[Launch]:
        """Return the launches of this run, oldest first."""
        return records.launches_since(self._before)

    def standby_launches(self) -> list[Launch]:
        """Return the launches of the sensor that takes two, oldest first."""
        return [launch for launch in self.launches() if launch.task_id == STANDBY]

    def callback_launches(self) -> list[Launch]:
        """Return the launches of callbacks, oldest first."""
        return [launch for launch in self.launches() if launch.kind is LaunchKind.CALLBACK]

    def outcome(self) -> Outcome:
        """Return everything that the run left behind."""
        found = records.callbacks({launch.subject_id for launch in self.callback_launches()})
        return Outcome(
            run_state=self.state(),
            tasks=[(task.task_id, task.map_index, task.state) for task in self.tasks()],
            callbacks=[(one.id, one.path.rpartition(".")[2], one.state) for one in found],
            launches=self.launches(),
            entries=self.entries(),
        )
