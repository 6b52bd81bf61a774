# SPDX-License-Identifier: Apache-2.0
"""The world of the model: the database, the backends, the processes, and what users do."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import BackendName, LaunchKind
from tests.unit.protocol_model import oracle
from tests.unit.protocol_model.artefacts import Broker, Cluster, SendAnswer
from tests.unit.protocol_model.execution import Execution, Stage
from tests.unit.protocol_model.rows import CallbackRow, Ledger, TaskRow
from tests.unit.protocol_model.scheduler import Scheduler

if TYPE_CHECKING:
    from dispatcher.domain.launch import Launch, Subject
    from tests.unit.protocol_model.rules import Rules

HEARTBEAT_TIMEOUT = timedelta(seconds=300)
CALLBACK_PATIENCE = timedelta(seconds=3000)
"""Long enough for everybody to do their work before the world has come to rest."""


class World:
    """Everything there is.

    :param rules: the protocol, or a mutant of it
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.tasks: dict[str, TaskRow] = {}
        self.callbacks: dict[str, CallbackRow] = {}
        self.ledger = Ledger(rules)
        self.failed_jobs: set[str | None] = set()
        self.schedulers: list[Scheduler] = []
        self.executions: list[Execution] = []
        self.backends: dict[BackendName, Broker | Cluster] = {
            BackendName.CELERY: Broker(),
            BackendName.KUBERNETES: Cluster(),
        }
        self.winners: dict[str, set[str]] = defaultdict(set)
        self.replaced: dict[str, str] = {}
        self._ids = 0

    # Names

    def new_id(self, prefix: str) -> str:
        """Return a new name."""
        self._ids += 1
        return f"{prefix}{self._ids}"

    # Rows

    def add_task(
        self, backend: BackendName = BackendName.CELERY, *, fresh_ids: bool = True, ours: bool = True
    ) -> TaskRow:
        """Add a task instance without a state."""
        place = self.new_id("task")
        row = TaskRow(place, self.new_id("ti"), backend.value, fresh_ids=fresh_ids, ours=ours)
        self.tasks[place] = row
        return row

    def add_callback(self, backend: BackendName = BackendName.CELERY) -> CallbackRow:
        """Add a pending callback."""
        row = CallbackRow(self.new_id("callback"), backend.value)
        self.callbacks[row.id] = row
        return row

    def issue(self, launch: Launch) -> None:
        """Insert a launch."""
        oracle.issued(self, launch.token)
        self.ledger.add(launch)

    def task_by_id(self, task_instance_id: str) -> TaskRow | None:
        """Find a task instance by its present UUID."""
        return next((row for row in self.tasks.values() if row.id == task_instance_id), None)

    def task_of(self, launch: Launch) -> TaskRow | None:
        """Find the task instance at the place of a launch."""
        return self.tasks.get(launch.task_id or "") if launch.kind is LaunchKind.TASK else None

    def subject_of(self, launch: Launch) -> Subject | None:
        """Read what a launch is about: a task by its place, a callback by its id."""
        if launch.kind is LaunchKind.CALLBACK:
            return self.callbacks[launch.subject_id].subject()
        task = self.task_of(launch)
        return None if task is None else task.subject()

    # Processes

    def add_scheduler(self) -> Scheduler:
        """Start a scheduler with a job of its own."""
        scheduler = Scheduler(self, self.new_id("job"))
        self.schedulers.append(scheduler)
        return scheduler

    def live_schedulers(self) -> list[Scheduler]:
        """Return the schedulers that run and were not declared dead."""
        return [one for one in self.schedulers if one.alive and one.job_id not in self.failed_jobs]

    def kill_scheduler(self, scheduler: Scheduler) -> None:
        """Let a scheduler die in the middle of what it does."""
        scheduler.alive = False
        self.failed_jobs.add(scheduler.job_id)

    def declare_dead(self, scheduler: Scheduler) -> None:
        """Take a scheduler that stalls for dead; it may go on later with all it remembers (K8)."""
        self.failed_jobs.add(scheduler.job_id)

    def send(self, launch: Launch, token: str) -> SendAnswer:
        """Hand an artefact to its backend."""
        oracle.sent(self, token)
        return self.backends[launch.backend].send(token)

    def deliver(self, index: int = 0, *, stock: bool = False) -> Execution:
        """Give one waiting message to a worker."""
        token = self.broker.ready.pop(index)
        return self._start(token, BackendName.CELERY, self.new_id("delivery"), stock=stock)

    def start_pod(self, token: str) -> Execution:
        """Start the container of a pod; a node that lost its memory may do so twice."""
        pod = self.cluster.pods[token]
        pod.starts += 1
        return self._start(token, BackendName.KUBERNETES, f"{pod.uid}/{pod.starts}", pod_uid=pod.uid)

    def _start(
        self, token: str, backend: BackendName, nonce: str, *, stock: bool = False, pod_uid: str = ""
    ) -> Execution:
        launch = self.ledger.rows[token]
        execution = Execution(
            world=self,
            token=token,
            kind=launch.kind,
            subject_id=launch.subject_id,
            backend=backend,
            nonce=nonce,
            worker=pod_uid or "worker1",
            pid=str(len(self.executions) + 1),
            stock=stock,
        )
        self.executions.append(execution)
        return execution

    @property
    def broker(self) -> Broker:
        """Celery's queue."""
        backend = self.backends[BackendName.CELERY]
        assert isinstance(backend, Broker)
        return backend

    @property
    def cluster(self) -> Cluster:
        """The pods."""
        backend = self.backends[BackendName.KUBERNETES]
        assert isinstance(backend, Cluster)
        return backend

    def delete_pod(self, token: str) -> None:
        """Delete a pod behind everybody's back: what runs in it dies."""
        self.cluster.delete(token)
        self.end_executions_of_missing_pods()

    def end_executions_of_missing_pods(self) -> None:
        """Let the processes die whose pods are gone."""
        uids = {pod.uid for pod in self.cluster.pods.values()}
        for execution in self.executions:
            if execution.backend is BackendName.KUBERNETES and execution.worker not in uids:
                execution.vanish()

    def fail_pod(self, token: str, reason: str) -> None:
        """Let a pod fail: whatever runs in it dies, also what a node that lost its memory started twice."""
        pod = self.cluster.pods.get(token)
        if pod is None:
            return
        self.cluster.end(token, pod.uid, ok=False, reason=reason)
        for execution in self.executions:
            if execution.worker == pod.uid:
                execution.vanish()

    # Time, users, triggers

    @property
    def heartbeat_timeout(self) -> timedelta:
        """How long the heartbeat of a running task may stand still."""
        return HEARTBEAT_TIMEOUT

    @property
    def callback_patience(self) -> timedelta:
        """How long a callback may wait for its claim."""
        return CALLBACK_PATIENCE

    def claimant_runs(self, launch: Launch) -> bool:
        """Whether the execution that won a launch is still there, in whatever stage."""
        winners = self.winners[launch.token]
        return any(
            one.token == launch.token and one.claimant in winners and one.stage is not Stage.OVER
            for one in self.executions
        )

    def after(self, seconds: int) -> datetime:
        """Return a time in the future."""
        return self.now + timedelta(seconds=seconds)

    def pass_time(self, seconds: int) -> None:
        """Let time go by; nothing else happens meanwhile."""
        self.now += timedelta(seconds=seconds)

    def prune(self) -> None:
        """Remove the launches that are old by now; what ended before is long ago."""
        for launch in list(self.ledger.rows.values()):
            if self.rules.may_be_pruned(launch, self.subject_of(launch), self.now):
                self.ledger.remove(launch.token)

    def schedule(self, row: TaskRow) -> None:
        """Let the DAG run schedule a task whose turn it is."""
        if row.state in (None, "up_for_retry"):
            row.try_number += 1
            row.times_stuck = 0
        elif row.state != "up_for_reschedule":
            return
        row.state = "scheduled"

    def fire_trigger(self, row: TaskRow) -> None:
        """Let the event come for which a task deferred."""
        if row.state == "deferred":
            row.state = "scheduled"
            row.resumed = True

    def clear(self, row: TaskRow, *, keeps_id: bool = False) -> None:
        """Let a user clear a task: a new UUID, and for a running one RESTARTING and the old token.

        :param keeps_id: as in an Airflow that does not change the UUID, which nothing here relies on
        """
        if not keeps_id:
            row.id = self.new_id("ti")
        row.said_success = False
        row.max_tries = row.try_number + 3
        if row.state == "running":
            row.state = "restarting"
            return
        row.state = None
        row.token = None
        row.resumed = False

    def delete_callback(self, row: CallbackRow) -> None:
        """Delete a callback, as happens when its DAG run is deleted (A15)."""
        row.deleted = True

    def mark(self, row: TaskRow, state: str) -> None:
        """Let a user set the state of a task."""
        row.state = state
        row.said_success = state == "success"
