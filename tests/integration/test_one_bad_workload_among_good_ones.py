# SPDX-License-Identifier: Apache-2.0
"""One workload, reason or key that is out of order neither holds up the rest nor ends the loop."""

from __future__ import annotations

import pytest
from airflow.utils.session import create_session
from airflow.utils.state import CallbackState, TaskInstanceState
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dispatcher.backends.base import Observation, Rejected
from dispatcher.dispatch.signing import Signer
from dispatcher.dispatch.submit import prepare
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")

ODD = ["a lone surrogate: \ud800", "a NUL: \x00"]


class BrokenKey:
    """Stands for Airflow's generator while the file of the private key cannot be read."""

    def __init__(self, real) -> None:
        self.real = real
        self.broken = True

    def generate(self, **options):
        if self.broken:
            raise OSError("key file with a secret name")
        return self.real.generate(**options)


@pytest.mark.parametrize("reason", ODD)
def test_a_reason_that_no_database_can_store(reason):
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    executor.celery.end(Observation(token, ok=False, reason=reason))

    ((state, info),) = run.loop(executor).values()

    assert state is TaskInstanceState.FAILED
    info.encode()
    assert info == run.launch_of(token).end_reason


@pytest.mark.parametrize("reason", ODD)
def test_a_rejection_that_no_database_can_store(reason):
    executor = run.started_executor()
    token = run.queue_task(executor)
    executor.celery.answers[token] = Rejected(reason)

    run.loop(executor)

    assert run.launch_of(token).state is LaunchState.DROPPED


def test_a_callback_that_cannot_be_written_as_json_fails_alone():
    executor = run.started_executor()
    token = run.queue_task(executor)
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(executor, callback_id)
    # PostgreSQL refuses to store such text, SQLite does not.
    (workload,) = executor.callback_queue.values()
    workload.callback.data["kwargs"] = {"text": "\ud800"}

    events = run.loop(executor)

    assert executor.celery.sends == [token]
    ((state, info),) = events.values()
    assert state is CallbackState.FAILED
    assert "JSON" in info
    assert executor.slots_occupied == 1


def test_a_key_that_cannot_be_used_postpones_the_send(caplog):
    executor = run.started_executor()
    token = run.queue_task(executor)
    key = BrokenKey(executor.jwt_generator)
    executor.jwt_generator = key

    run.loop(executor)
    assert executor.celery.sends == []
    assert token in "".join(map(str, executor.dispatcher.in_flight()))
    assert "secret name" not in caplog.text

    key.broken = False
    for flight in executor.dispatcher.in_flight():
        flight.not_before = 0.0
    run.loop(executor)
    assert executor.celery.sends == [token]


def test_what_is_prepared_shows_no_secret():
    executor = run.started_executor()
    run.queue_task(executor)
    (workload,) = executor.task_queue.values()

    prepared = prepare(Signer(lambda: executor.jwt_generator, 60.0), workload, None)

    assert prepared.workload.token in prepared.payload
    assert prepared.workload.token not in repr(prepared)


def test_a_pool_without_a_free_connection_keeps_the_batch(monkeypatch):
    executor = run.started_executor()
    token = run.queue_task(executor)

    def none_free(*_args, **_options):
        raise PoolTimeoutError("QueuePool limit of size 5 overflow 10 reached")

    with monkeypatch.context() as patch:
        patch.setattr("sqlalchemy.orm.Session.connection", none_free)
        run.loop(executor)
    assert executor.celery.sends == []

    run.loop(executor)
    assert executor.celery.sends == [token]
