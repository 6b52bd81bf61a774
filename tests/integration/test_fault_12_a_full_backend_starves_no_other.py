# SPDX-License-Identifier: Apache-2.0
"""Known fault 12: one backend takes no more, and the other one idles behind its line."""

from __future__ import annotations

from functools import partial

import pytest
from airflow.utils.session import create_session

from dispatcher.backends.base import BEGIN_SECONDS, Postponed
from dispatcher.backends.memory import MemoryBackend
from dispatcher.dispatch.signing import Signer
from dispatcher.dispatch.submit import Submitter
from dispatcher.domain.lifecycle import BackendName
from tests.support import dispatching as run
from tests.support import rows
from tests.support.service_dispatching import die, orphan_check

pytestmark = pytest.mark.usefixtures("airflow_db")

FULL = Postponed("the quota is used up", retry_after=60.0)


def queue_line(executor, number: int, **columns) -> list[str]:
    """Queue a line of urgent tasks for pods, of which none is taken."""
    tokens = [
        run.queue_task(executor, task_id=f"pod-{n}", queue="kubernetes", priority_weight=99, **columns)
        for n in range(number)
    ]
    executor.kubernetes.answers |= dict.fromkeys(tokens, FULL)
    return tokens


def test_fault_12_urgent_tasks_that_wait_take_no_turn_from_others():
    executor = run.started_executor()
    line = queue_line(executor, 4)
    executor.parallelism = 4
    run.loop(executor)
    # More than there are slots, as when a dead scheduler's launches were taken over.
    due = [run.queue_task(executor, task_id=f"celery-{n}", priority_weight=1) for n in range(3)]
    run.loop(executor)
    assert sorted(executor.celery.sends) == sorted(due)
    assert sorted(executor.kubernetes.sends) == sorted(line)
    assert executor.slots_available == 0


def test_fault_12_callbacks_that_wait_take_no_turn_from_tasks(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")
    executor = run.started_executor()
    for _ in range(3):
        with create_session(scoped=False) as session:
            callback_id = rows.make_callback(session).id
        run.queue_callback(executor, callback_id)
    tokens = [flight.token for flight in executor.dispatcher.in_flight()]
    executor.kubernetes.answers |= dict.fromkeys(tokens, FULL)
    executor.parallelism = 2
    run.loop(executor)
    run.loop(executor)
    due = run.queue_task(executor)
    run.loop(executor)
    assert executor.celery.sends == [due]


def test_fault_12_what_was_taken_over_is_sent_while_the_other_half_is_full():
    dead, live = run.started_executor(), run.started_executor()
    queue_line(live, 2)
    live.parallelism = 2
    run.loop(live)
    left = run.queue_task(dead, task_id="left")
    die(dead)
    assert orphan_check(live) == 0
    for _ in range(2):
        run.loop(live)
    assert live.celery.sends == [left]


def test_never_more_are_sent_than_there_are_slots():
    executor = run.started_executor()
    executor.parallelism = 2
    for n in range(5):
        run.queue_task(executor, task_id=f"celery-{n}", priority_weight=n)
    for _ in range(3):
        run.loop(executor)
    assert len(executor.celery.sends) == 2
    assert executor.slots_available == 0


class SlowBroker(MemoryBackend):
    """Takes longer to send than a check is good, as it may with a high ``[celery] operation_timeout``."""

    def __init__(self) -> None:
        super().__init__(BackendName.CELERY)
        self.now = 0.0

    def submit(self, batch):
        results = super().submit(batch)
        self.now += BEGIN_SECONDS + 1.0
        return results


def test_fault_12_pods_are_handed_over_however_long_messages_take():
    executor, broker = run.started_executor(), SlowBroker()
    first = run.queue_task(executor, task_id="celery", priority_weight=99)
    second = run.queue_task(executor, task_id="pod", queue="kubernetes")
    submitter = Submitter(
        backends={BackendName.CELERY: broker, BackendName.KUBERNETES: executor.kubernetes},
        signer=Signer(lambda: executor.jwt_generator, 600),
        owner=str(executor.job_id),
        session=partial(create_session, scoped=False),
        clock=lambda: broker.now,
        utcnow=rows.utcnow,
    )
    outcome = submitter.submit(executor.dispatcher.in_flight())
    assert outcome.sent == {first, second}
