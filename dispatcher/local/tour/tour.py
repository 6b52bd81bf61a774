# SPDX-License-Identifier: Apache-2.0
"""The tour itself: one run over both backends, three provocations, and the judgement at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.local.errors import LocalModeError
from dispatcher.local.tour import worker
from dispatcher.local.tour.expectations import (
    CALLBACKS,
    DAG_ID,
    PARTS,
    STANDBY,
    STANDBY_QUEUE,
    STANDBY_RESUMED,
    SUCCESS,
    faults,
)
from dispatcher.local.tour.pods import pods_left
from dispatcher.local.tour.provocations import Provocations
from dispatcher.local.tour.run import Run
from dispatcher.local.tour.waiting import happened, wait_for

if TYPE_CHECKING:
    from dispatcher.domain.launch import Launch
    from dispatcher.local.progress import Progress
    from dispatcher.local.tour.rest import RestApi
    from dispatcher.local.tour.system import System

PARSE_SECONDS = 90
RUN_SECONDS = 240
STEP_SECONDS = 120
SETTLE_SECONDS = 90
QUEUED = "queued"


class Tour:
    """Takes one run of the example DAG from its start to the judgement.

    :param system: the running Airflow
    :param api: its REST API
    :param progress: where to say what happens
    """

    def __init__(self, system: System, api: RestApi, progress: Progress) -> None:
        self._system = system
        self._api = api
        self._progress = progress
        self._run: Run | None = None

    def take(self) -> list[str]:
        """Run and provoke, and return what did not come out as it must.

        :raises LocalModeError: the tour could not be gone through to its end
        """
        self._wait_for_dag()
        self._run = run = self._start()
        self._hold_standby(run)
        self._wait_for_the_others(run)
        self._provoke(run)
        self._wait_for_end(run)
        return self._judge(run)

    def launches(self) -> list[Launch]:
        """Return the launches of the run as far as it got, oldest first."""
        return [] if self._run is None else self._run.launches()

    def _wait_for_dag(self) -> None:
        def look() -> bool:
            if errors := self._api.import_errors():
                raise LocalModeError(f"the example DAG cannot be imported:\n{errors[0]}")
            return self._api.knows(DAG_ID)

        wait_for(f"the DAG processor to parse {DAG_ID}", look, PARSE_SECONDS)

    def _start(self) -> Run:
        self._api.unpause(DAG_ID)
        run = Run(self._api, self._system.journal, self._progress)
        self._progress.say(f"run {run.run_id} of {DAG_ID} triggered")
        return run

    def _hold_standby(self, run: Run) -> None:
        """Let the sensor's first launch run, and see to it that the second waits in its queue."""
        wait_for(f"{STANDBY} to start", lambda: run.noted(STANDBY), STEP_SECONDS)
        worker.leave(STANDBY_QUEUE)
        self._progress.say(f"{STANDBY} deferred; its next launch will wait in the queue {STANDBY_QUEUE}")

    def _wait_for_the_others(self, run: Run) -> None:
        def look() -> bool:
            if run.noted(STANDBY_RESUMED):
                raise LocalModeError(f"the second launch of {STANDBY} was not held back in time")
            tasks = run.tasks()
            done = [task for task in tasks if task.state == SUCCESS]
            waiting = [task for task in tasks if task.task_id == STANDBY and task.state == QUEUED]
            callbacks = [launch for launch in run.callback_launches() if not launch.open]
            return bool(len(done) == len(PARTS) - 1 and waiting and len(callbacks) == len(CALLBACKS))

        wait_for(f"every task but {STANDBY}, and the callbacks, to end", look, RUN_SECONDS)
        self._progress.say(
            f"all but {STANDBY} have ended, and so have the callbacks; {STANDBY} is queued anew"
        )

    def _provoke(self, run: Run) -> None:
        first, second = run.standby_launches()
        provocations = Provocations(run, self._system, self._progress)
        provocations.old_message(first)
        provocations.old_pod(first)
        worker.consume(STANDBY_QUEUE)
        wait_for(
            f"{STANDBY} to go on in its second launch",
            lambda: run.noted(STANDBY_RESUMED),
            STEP_SECONDS,
        )
        provocations.second_claimant(second)

    def _wait_for_end(self, run: Run) -> None:
        self._system.gate.touch()
        wait_for("the run to end", lambda: run.tasks() and run.state() == SUCCESS, STEP_SECONDS)
        self._progress.say("the run has ended; the executor settles its launches and removes what they left")

        def clean() -> bool:
            settled = all(launch.settled_at is not None for launch in run.launches())
            return settled and not pods_left(self._system.namespace)

        happened(clean, SETTLE_SECONDS)

    def _judge(self, run: Run) -> list[str]:
        left = [f"pod {pod} is left" for pod in pods_left(self._system.namespace)]
        return faults(run.outcome()) + left
