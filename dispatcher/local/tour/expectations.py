# SPDX-License-Identifier: Apache-2.0
"""How a run of the example DAG must come out, and what is not so. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.example_dags.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dispatcher.domain.launch import Launch

DAG_ID = "hybrid_tour"
STANDBY = "standby"
STANDBY_QUEUE = "standby"
STANDBY_RESUMED = "standby resumed"
SUCCESS = "success"


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One task instance of the run.

    :param launches: how many launches it takes
    """

    task_id: str
    map_index: int
    backend: BackendName
    queue: str
    launches: int = 1

    def __str__(self) -> str:
        """Name the task instance."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


PARTS = (
    Part("list_parts", -1, BackendName.CELERY, "default"),
    Part("load_part", 0, BackendName.CELERY, "default"),
    Part("load_part", 1, BackendName.CELERY, "default"),
    Part("fit_constant", -1, BackendName.KUBERNETES, "kubernetes"),
    Part("fit_line", -1, BackendName.KUBERNETES, "kubernetes"),
    Part("fit_curve", -1, BackendName.KUBERNETES, "kubernetes"),
    Part("pick_best", -1, BackendName.CELERY, "default"),
    Part(STANDBY, -1, BackendName.CELERY, STANDBY_QUEUE, launches=2),
)
CALLBACKS = {
    "report_late_on_celery": BackendName.CELERY,
    "report_late_on_kubernetes": BackendName.KUBERNETES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the run left behind.

    :param run_state: Airflow's state of the run
    :param tasks: task id, map index and Airflow's state of each task instance
    :param callbacks: UUID, name of the function and Airflow's state of each callback
    :param launches: the ledger rows of the run, oldest first
    :param entries: what the bodies noted
    """

    run_state: str
    tasks: Sequence[tuple[str, int, str | None]]
    callbacks: Sequence[tuple[str, str, str | None]]
    launches: Sequence[Launch]
    entries: Sequence[Entry]


def expected_entries() -> list[Entry]:
    """Return what the bodies must have noted: each of them once, where it belongs."""
    entries = [Entry(part.task_id, part.map_index, 1, part.backend.value) for part in PARTS]
    entries.append(Entry(STANDBY_RESUMED, -1, 1, BackendName.CELERY.value))
    entries += [Entry(name, -1, 0, backend.value) for name, backend in CALLBACKS.items()]
    return entries


def faults(outcome: Outcome) -> list[str]:
    """Return, one line each, what did not come out as it must; nothing when all is well."""
    found = [] if outcome.run_state == SUCCESS else [f"the run ended as {outcome.run_state}"]
    found += _task_faults(outcome.tasks)
    found += _callback_faults(outcome)
    found += _launch_faults(outcome)
    found += _entry_faults(outcome.entries)
    return found


def _task_faults(tasks: Iterable[tuple[str, int, str | None]]) -> list[str]:
    found = []
    states = {(task_id, map_index): state for task_id, map_index, state in tasks}
    for part in PARTS:
        state = states.pop((part.task_id, part.map_index), "missing")
        if state != SUCCESS:
            found.append(f"task {part} is {state}")
    return found + [f"nobody expected task {task_id}[{map_index}]" for task_id, map_index in states]


def _callback_faults(outcome: Outcome) -> list[str]:
    names = Counter(name for _, name, _ in outcome.callbacks)
    counts = [f"there are {names[name]} callbacks {name}, not 1" for name in CALLBACKS if names[name] != 1]
    states = [f"callback {name} is {state}" for _, name, state in outcome.callbacks if state != SUCCESS]
    return counts + states


def _launch_faults(outcome: Outcome) -> list[str]:
    found = []
    backends = {callback_id: CALLBACKS.get(name) for callback_id, name, _ in outcome.callbacks}
    left = list(outcome.launches)
    for part in PARTS:
        own = [one for one in left if (one.task_id, one.map_index) == (part.task_id, part.map_index)]
        left = [one for one in left if one not in own]
        if len(own) != part.launches:
            found.append(f"task {part} took {len(own)} launches, not {part.launches}")
        for launch in own:
            # The worker of one that deferred may still be busy when the next one is submitted (rule 3).
            gave_way = launch is not own[-1] and launch.state is LaunchState.SUPERSEDED
            found += _faults_of_one(launch, str(part), part.backend, part.queue, gave_way=gave_way)
    for launch in left:
        if launch.kind is LaunchKind.CALLBACK and launch.subject_id in backends:
            found += _faults_of_one(launch, "callback", backends[launch.subject_id], None)
        else:
            found.append(f"nobody expected launch {launch.token} of {launch.task_id or launch.subject_id}")
    per_callback = Counter(one.subject_id for one in left)
    found += [
        f"callback {one} took {count} launches, not 1" for one, count in per_callback.items() if count > 1
    ]
    found += [f"callback {one} took no launch" for one in backends if not per_callback[one]]
    return found


def _faults_of_one(
    launch: Launch, subject: str, backend: BackendName | None, queue: str | None, *, gave_way: bool = False
) -> list[str]:
    found = []
    if launch.backend is not backend:
        found.append(f"{subject} went to {launch.backend.value}, not to {backend}")
    if queue is not None and launch.queue != queue:
        found.append(f"{subject} went to queue {launch.queue}, not to {queue}")
    if launch.state is not LaunchState.SUCCEEDED and not gave_way:
        found.append(f"a launch of {subject} is {launch.state.value}: {launch.end_reason or 'no reason'}")
    if launch.claimant is None:
        found.append(f"a launch of {subject} was never claimed")
    if launch.settled_at is None:
        found.append(f"a launch of {subject} is not settled")
    return [f"{one} (token {launch.token})" for one in found]


def _entry_faults(entries: Iterable[Entry]) -> list[str]:
    noted, wanted = Counter(entries), Counter(expected_entries())
    found = [f"{entry} was noted {count} times too often" for entry, count in (noted - wanted).items()]
    return found + [f"{entry} was not noted" for entry in wanted - noted]
