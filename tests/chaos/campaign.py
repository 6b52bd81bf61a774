# SPDX-License-Identifier: Apache-2.0
"""One run from its begin to its verdict: work and strikes, then neither, then what came of it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatcher.local.errors import LocalModeError
from dispatcher.local.tour.rest import RestApi
from tests.chaos.clock import say
from tests.chaos.evidence import gather, install_audit, rest
from tests.chaos.fleet import Fleet
from tests.chaos.havoc import Havoc
from tests.chaos.plan import strikes
from tests.chaos.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from dispatcher.local.interrupts import Interrupts
    from tests.chaos.ground import Ground
    from tests.chaos.records import Evidence
    from tests.chaos.verdict import Verdict

DAG_ID = "chaos"

TASKS_IN_FLIGHT = 12
"""No run is added while more tasks than this are open: the machine must keep up."""

LOOP_SECONDS = 0.5
TELL_SECONDS = 20
KNOWN_SECONDS = 120
DRAIN_SECONDS = 300
"""How long everything may take to end once nothing is added or struck any more."""

SLOTS_SECONDS = 60
ANSWER_SECONDS = 5
"""How long the last slots may take to be freed, and a scheduler to say which it holds."""

PODS_SECONDS = 45
"""How long the last pods may take to be removed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    :param result: what is printed
    :param evidence: all that is known
    """

    result: dict[str, Any]
    verdict: Verdict
    evidence: Evidence


class Campaign:
    """A run on a ground of its own.

    :param seed: decides what is struck, and when
    :param minutes: how long work is added and things are struck, at most
    :param tasks: after how many tasks that ends sooner; None for never
    """

    def __init__(
        self, ground: Ground, interrupts: Interrupts, *, seed: int, minutes: float, tasks: int | None
    ) -> None:
        self._ground = ground
        self._seed, self._minutes, self._tasks = seed, minutes, tasks
        self.fleet = Fleet(ground, interrupts)
        self._havoc = Havoc(self.fleet, ground)
        self._numbers = itertools.count(1)
        self._next_telling = 0.0

    def run(self, stack: ExitStack) -> Outcome:
        """Do it all.

        :param stack: whose end ends the processes
        :raises LocalModeError: the Airflow did not start, or crashes again and again
        """
        stack.callback(self.fleet.stop)
        self.fleet.migrate()
        install_audit(self._ground.engine)
        self.fleet.start_all()
        api = RestApi(self.fleet.api_url, self.fleet.login)
        stack.callback(api.close)
        self._wait_for_dag(api)
        self._work_and_strike(api)
        drained = self._drain()
        evidence = self._collect()
        verdict = judge(evidence)
        return Outcome(self._result(verdict, evidence, drained), verdict, evidence)

    def _wait_for_dag(self, api: RestApi) -> None:
        until = time.monotonic() + KNOWN_SECONDS
        while not api.knows(DAG_ID):
            errors = api.import_errors()
            if errors or time.monotonic() > until:
                raise LocalModeError(f"the DAG is not known: {errors}")
            time.sleep(LOOP_SECONDS)

    def _work_and_strike(self, api: RestApi) -> None:
        say(f"work and strikes begin; the seed is {self._seed}")
        plan: Iterator[Any] = strikes(self._seed)
        strike = next(plan)
        began = turned = time.monotonic()
        planned = 0.0
        while (now := time.monotonic()) < began + 60 * self._minutes:
            # On a slow machine the plan waits: without an API server nothing is there to be struck.
            planned += now - turned if self._havoc.api_server_answers() else 0.0
            turned = now
            if planned >= strike.at:
                self._havoc.strike(strike)
                strike = next(plan)
            if not self._add_work(api):
                break
            self._turn()

    def _add_work(self, api: RestApi) -> bool:
        """Add a run if there is room; say no once there are enough."""
        open_tasks, all_tasks = self._tell()
        if self._tasks is not None and all_tasks >= self._tasks:
            return False
        if open_tasks <= TASKS_IN_FLIGHT:
            # The API server may be away; if it took the run all the same, that is one more.
            with suppress(LocalModeError):
                api.trigger(DAG_ID, f"run_{next(self._numbers)}")
        return True

    def _drain(self) -> float:
        say("nothing is added or struck any more")
        began = time.monotonic()
        while time.monotonic() < began + DRAIN_SECONDS:
            if self._havoc.mended and rest(self._ground.engine).nothing:
                break
            self._tell()
            self._turn()
        return time.monotonic() - began

    def _turn(self) -> None:
        self._havoc.mend()
        time.sleep(LOOP_SECONDS)

    def _tell(self) -> tuple[int, int]:
        left = rest(self._ground.engine)
        if time.monotonic() >= self._next_telling:
            say(str(left))
            self._next_telling = time.monotonic() + TELL_SECONDS
        return left.tasks, left.all_tasks

    def _collect(self) -> Evidence:
        evidence = gather(self._ground.engine, self.fleet.notes)
        evidence.killed = {**self.fleet.killed, **self._havoc.killed_pods}
        until = time.monotonic() + SLOTS_SECONDS
        while True:
            evidence.slots = self.fleet.slots_held(ANSWER_SECONDS)
            if not any(slots != 0 for slots in evidence.slots.values()) or time.monotonic() > until:
                return evidence

    def _pods_left(self) -> int:
        until = time.monotonic() + PODS_SECONDS
        while pods := len(self._ground.pods.list_namespaced_pod(self._ground.namespace).items):
            if time.monotonic() > until:
                break
            time.sleep(LOOP_SECONDS)
        return pods

    def _result(self, verdict: Verdict, evidence: Evidence, drained: float) -> dict[str, Any]:
        states = Counter(one.state for one in evidence.tasks)
        callbacks = Counter(one.state for one in evidence.callbacks)
        return {
            "seed": self._seed,
            "launches": len(evidence.launches),
            "kills": self._havoc.counts.total(),
            **verdict.counts(),
            "tasks": states.total(),
            "tasks_failed": states["failed"] + states["upstream_failed"],
            "retries": sum(int(one.subject[-1]) > 1 for one in evidence.tasks),
            "callbacks": callbacks.total(),
            "callbacks_failed": callbacks["failed"],
            "bodies": len(evidence.bodies),
            "crashes": len(self._havoc.crashes),
            "pods_left": self._pods_left(),
            "drain_seconds": round(drained),
            "kills_by_kind": dict(sorted(self._havoc.counts.items())),
        }
