# SPDX-License-Identifier: Apache-2.0
"""A4: callbacks and tasks compete for slots. Callbacks go first, each counts once, and the limit holds."""

from __future__ import annotations

import pytest
from airflow.utils.session import create_session

from tests.support import callback_dispatching as on
from tests.support import dispatching as run
from tests.support import rows
from tests.support import service_dispatching as services

pytestmark = pytest.mark.usefixtures("airflow_db")

SLOTS = 3


@pytest.fixture
def executor():
    with create_session(scoped=False) as session:
        job_id = rows.make_scheduler_job(session).id
    executor = run.MemoryExecutor(job_id, parallelism=SLOTS)
    executor.start()
    return executor


def queue_all(executor, tasks, callbacks):
    """Queue tasks first, then callbacks; return the tokens of both."""
    task_tokens = [run.queue_task(executor, task_id=f"task{number}") for number in range(tasks)]
    ids = [on.new_callback() for _ in range(callbacks)]
    for callback_id in ids:
        run.queue_callback(executor, callback_id)
    return task_tokens, [on.token_of(callback_id) for callback_id in ids], ids


def test_callbacks_go_first_and_the_limit_holds(executor):
    tasks, callbacks, ids = queue_all(executor, 3, 2)
    assert executor.slots_occupied == 5, "what is queued counts, once each"
    assert executor.slots_available == 0

    run.loop(executor)
    assert executor.celery.sends[:2] == callbacks
    assert len(executor.celery.sends) == len(executor.running) == SLOTS

    for callback_id, token in zip(ids, callbacks, strict=True):
        assert on.claim(callback_id, token)
        on.report(callback_id, token)
    run.loop(executor)  # hears of the ends
    run.loop(executor)
    assert set(executor.celery.sends) == {*callbacks, *tasks}
    assert (executor.slots_occupied, executor.slots_available) == (3, 0)


def test_one_that_waits_for_its_broker_keeps_its_place_and_counts_once(executor):
    from dispatcher.backends.base import Postponed

    _, (token,), _ = queue_all(executor, 0, 1)
    executor.celery.answers[token] = Postponed("the broker is away", retry_after=0.0)
    for _ in range(3):
        run.loop(executor)
        assert executor.slots_occupied == 1


def test_what_is_taken_over_counts_and_nothing_more_is_sent(executor):
    with create_session(scoped=False) as session:
        dead_id = rows.make_scheduler_job(session).id
    dead = run.MemoryExecutor(dead_id, parallelism=SLOTS)
    dead.start()
    _, tokens, ids = queue_all(dead, 0, SLOTS)
    run.loop(dead)
    for callback_id, token in zip(ids, tokens, strict=True):
        assert on.claim(callback_id, token)
    task = run.queue_task(executor)
    services.die(dead)

    executor.dispatcher.adopt_soon()
    run.loop(executor)
    assert (len(executor.running), executor.slots_available) == (SLOTS + 1, 0)
    second = run.queue_task(executor, task_id="second")
    for _ in range(2):
        run.loop(executor)
    assert executor.celery.sends == [task]

    on.report(ids[0], tokens[0])
    on.report(ids[1], tokens[1])
    for _ in range(2):
        run.loop(executor)
    assert executor.celery.sends == [task, second]
