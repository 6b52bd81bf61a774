# SPDX-License-Identifier: Apache-2.0
"""K8 with Airflow's own schedulers: A stalls, is declared dead, B adopts; A wakes up with launches in hand.

Right: A launches nothing that B owns by now and reports nothing about it: tasks and callbacks, on both
backends, whether they run, wait, have ended, or were just being sent when A stalled.
"""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from airflow.models.callback import Callback
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.backends.base import Observation, Postponed, Sent, Underway
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.ledger import claims, store
from tests.support import dispatching as run
from tests.support import rows
from tests.support.core_scheduler import CoreScheduler, start_run

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.usefixtures("several_schedulers")]

FATES = ("runs", "fails", "waits", "postponed", "underway", "unsent")
"""What has become of a launch when A stalls."""

QUEUES = ("default", "kubernetes")
CALLBACKS = ("tests.support.callbacks.note", "tests.support.callbacks.other")


class RecordingExecutor(run.MemoryExecutor):
    """Remembers every event that Airflow was told."""

    def __init__(self) -> None:
        super().__init__(job_id=0)
        self.told: list[tuple] = []
        self.open_to_core: int | None = None

    @property
    def slots_available(self) -> int:
        return super().slots_available if self.open_to_core is None else self.open_to_core

    def get_event_buffer(self, dag_ids=None):
        events = super().get_event_buffer(dag_ids)
        self.told += [(key, *event) for key, event in events.items()]
        return events

    @property
    def sends(self) -> list[str]:
        return [*self.celery.sends, *self.kubernetes.sends]


@pytest.fixture
def a():
    return RecordingExecutor()


@pytest.fixture
def b():
    return RecordingExecutor()


def launches() -> list:
    with create_session(scoped=False) as session:
        return sorted(store.recent(session.connection(), limit=200), key=lambda one: one.sequence)


def owners(found) -> set[str]:
    return {one.scheduler_job_id for one in found}


def task_states() -> dict[str, tuple]:
    with create_session(scoped=False) as session:
        statement = select(TaskInstance.task_id, TaskInstance.state, TaskInstance.try_number)
        return {task_id: (str(state), number) for task_id, state, number in session.execute(statement)}


def callback_states(tokens) -> dict[str, str]:
    ids = {UUID(one.subject_id): one.token for one in launches() if one.token in tokens}
    with create_session(scoped=False) as session:
        statement = select(Callback.id, Callback.state).where(Callback.id.in_(ids))
        return {ids[callback_id]: str(state) for callback_id, state in session.execute(statement)}


def claim(launch) -> None:
    if launch.kind is LaunchKind.TASK:
        assert run.claim(launch.token)
        return
    with create_session(scoped=False) as session:
        connection, now = session.connection(), rows.utcnow()
        won = claims.claim_callback(
            connection, launch.token, launch.subject_id, "nonce:one", hostname="worker", now=now
        )
        session.get(Callback, UUID(launch.subject_id)).state = "running"
    assert won


def prepare(executor, fates: dict[str, str]) -> None:
    """Let sends of some launches not come to an end."""
    for backend in (executor.celery, executor.kubernetes):
        for token, fate in fates.items():
            if fate == "postponed":
                backend.answers[token] = Postponed("busy", retry_after=60.0)
            if fate == "underway":
                backend.answers[token] = Underway()


def let_end(executors, token: str) -> None:
    ending = Observation(token, ok=False, reason="OOMKilled", claimant="nonce:one")
    for executor in executors:
        executor.celery.end(ending)
        executor.kubernetes.end(ending)


def test_k8_a_woken_scheduler_leaves_all_to_the_one_that_adopted(a, b, monkeypatch):
    to_pods = {"match": {"callback": "*.other"}, "backend": "kubernetes"}
    monkeypatch.setenv("AIRFLOW__DISPATCHER__ROUTES", json.dumps([to_pods]))
    first = CoreScheduler(a)
    fates = queue_all(first, a)
    tokens_of = {fate: {token for token, one in fates.items() if one == fate} for fate in FATES}
    prepare(a, fates)
    # It sends all but some, which it has not come to when it stalls.
    held = [hold(a, token) for token in tokens_of["unsent"]]
    a.parallelism = 100
    a.heartbeat()
    for queue, key, workload in held:
        queue[key] = workload
    assert set(a.sends) == set(fates) - tokens_of["unsent"]
    for launch in launches():
        if fates[launch.token] in ("runs", "fails"):
            claim(launch)
    first.stall()

    second = CoreScheduler(b)
    b.parallelism = 100
    second.turn(2)
    assert first.state() == "failed"
    assert owners(launches()) == {str(second.job.id)}
    assert set(b.sends) >= tokens_of["unsent"], "B sends what A has not sent"

    # Some fail, what was postponed is due, and what was underway comes back to A, which wakes up.
    sent_by_a = list(a.sends)
    for token in tokens_of["fails"]:
        let_end((a, b), token)
    for token in tokens_of["underway"]:
        backend_of(a, token).outcomes[token] = Postponed("its turn did not come", tried=False)
    for flight in a.dispatcher.in_flight():
        flight.not_before = 0.0
    a.dispatcher.sweep_soon()
    first.turn(2)
    assert a.told == []
    assert a.sends == sent_by_a, "A sends nothing of B's"
    assert a.celery.removals == a.kubernetes.removals == []
    assert (a.slots_occupied, a.dispatcher.in_flight()) == (0, [])
    # A's heartbeats make its job a running one again: ownership is in each row, not in the state of a job.
    assert owners(launches()) == {str(second.job.id)}
    # A send that had begun arrives after all: where it is is noted, and nothing else follows.
    for token in tokens_of["underway"]:
        backend_of(a, token).outcomes[token] = Sent("somewhere")
    first.turn()

    second.turn(2)
    assert a.told == []
    assert {state for _, state, _ in b.told} == {"failed"}
    states = {launch.token: launch.state for launch in launches()}
    assert {states[token] for token in tokens_of["fails"]} == {LaunchState.FAILED}
    assert {states[token] for token in tokens_of["runs"]} == {LaunchState.CLAIMED}
    tasks = task_states()
    assert {tasks.pop(f"fails-{queue}")[0] for queue in QUEUES} <= {"up_for_retry", "scheduled", "queued"}
    assert {number for _, number in tasks.values()} == {1}, "no other task lost its try"
    failed = {token for token, state in callback_states(fates).items() if state == "failed"}
    assert failed == {one.token for one in launches() if one.kind == "callback"} & tokens_of["fails"]


def queue_all(scheduler, executor) -> dict[str, str]:
    """Let a scheduler queue a task and a callback of each fate on each backend, and send nothing yet."""
    start_run("stalling", [f"{fate}-{queue}@{queue}" for queue in QUEUES for fate in FATES])
    with create_session(scoped=False) as session:
        for path in CALLBACKS:
            for _ in FATES:
                rows.make_callback(session, path=path)
    executor.parallelism = 0
    executor.open_to_core = 100
    scheduler.turn(2)
    executor.open_to_core = None
    assert executor.sends == []
    queued = launches()
    assert len(queued) == 4 * len(FATES)
    callbacks = {backend: iter(FATES) for backend in BackendName}
    return {
        one.token: one.task_id.partition("-")[0] if one.task_id else next(callbacks[one.backend])
        for one in queued
    }


def backend_of(executor, token: str):
    return {BackendName.CELERY: executor.celery, BackendName.KUBERNETES: executor.kubernetes}[
        run.launch_of(token).backend
    ]


def hold(executor, token: str):
    """Take one workload out of the queue of those to be sent."""
    (flight,) = [one for one in executor.dispatcher.in_flight() if one.token == token]
    for queue in (executor.task_queue, executor.callback_queue):
        if flight.key in queue:
            return queue, flight.key, queue.pop(flight.key)
    raise AssertionError(f"{flight.key} is not queued")
