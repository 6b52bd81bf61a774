# SPDX-License-Identifier: Apache-2.0
"""Rule 4: what is sent was hit by the compare-and-set, and what was not is forgotten or dropped."""

from __future__ import annotations

import threading

import pytest
from airflow.models.callback import Callback
from airflow.utils.session import create_session
from sqlalchemy import event, update

from dispatcher.dispatch import submit
from dispatcher.ledger import store
from dispatcher.ledger.models import LaunchRow
from tests.support import dispatching, rows

pytestmark = pytest.mark.usefixtures("airflow_db")


def queue_mapped(executor, count):
    return [dispatching.queue_task(executor, map_index=number) for number in range(count)]


def change_launch(token, **values):
    with create_session(scoped=False) as session:
        session.execute(update(LaunchRow).where(LaunchRow.token == token).values(**values))


def launches():
    with create_session(scoped=False) as session:
        return store.recent(session.connection(), limit=100)


def state_of(token):
    return dispatching.launch_of(token).state.value


CHANGES = {
    "finished": (lambda token: dispatching.set_task(token, state="success"), "dropped"),
    "token-lost": (lambda token: dispatching.set_task(token, external_executor_id="another"), "dropped"),
    "scheduled-again": (lambda token: dispatching.set_task(token, state="scheduled"), "dropped"),
    "claimed": (lambda token: change_launch(token, state="claimed", claimant="process:x"), "claimed"),
    "taken-over": (lambda token: change_launch(token, scheduler_job_id="0"), "issued"),
    "revoked": (lambda token: change_launch(token, state="revoked"), "revoked"),
}
"""What happened to a task between its issue and the heartbeat, and where that leaves its launch."""


@pytest.mark.parametrize("name", CHANGES)
def test_only_the_launch_that_may_not_be_sent_is_left_out_of_a_batch(name):
    happen, state = CHANGES[name]
    executor = dispatching.started_executor()
    before, changed, after = queue_mapped(executor, 3)
    happen(changed)

    executor.heartbeat()

    assert set(executor.celery.artefacts) == {before, after}
    assert state_of(changed) == state
    for token in (before, after):
        launch = dispatching.launch_of(token)
        assert launch.state.value == "submitted"
        assert launch.external_id == token


class NotingGenerator:
    """A generator of JWTs that tells when it has made some.

    :param generator: makes them
    :param count: how many
    """

    def __init__(self, generator, count):
        self._generator = generator
        self._left = count
        self.done = threading.Event()

    def generate(self, **claims):
        token = self._generator.generate(**claims)
        self._left -= 1
        if self._left == 0:
            self.done.set()
        return token


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_signed_while_its_check_ran_is_not_sent_if_that_drops_it(name, monkeypatch):
    happen, state = CHANGES[name]
    executor = dispatching.started_executor()
    other, changed = queue_mapped(executor, 2)
    executor.jwt_generator = generator = NotingGenerator(executor.jwt_generator, 2)
    check = submit.clear

    def check_once_signed(*args):
        assert generator.done.wait(60)
        happen(changed)
        return check(*args)

    monkeypatch.setattr(submit, "clear", check_once_signed)
    executor.heartbeat()

    assert set(executor.celery.artefacts) == {other}
    assert state_of(changed) == state
    assert all(flight.workload is None for flight in executor.dispatcher.in_flight() if flight.token == other)


def test_a_callback_that_ended_meanwhile_is_dropped_and_the_rest_of_the_batch_is_sent():
    executor = dispatching.started_executor()
    task = dispatching.queue_task(executor)
    with create_session(scoped=False) as session:
        done, waiting = (rows.make_callback(session).id for _ in range(2))
    for callback in (done, waiting):
        dispatching.queue_callback(executor, callback)
    with create_session(scoped=False) as session:
        session.get(Callback, done).state = "success"

    executor.heartbeat()

    sent = {launch.subject_id: launch.state.value for launch in launches() if launch.token != task}
    assert sent == {str(done): "dropped", str(waiting): "submitted"}
    assert len(executor.celery.artefacts) == 2


def test_a_batch_costs_a_few_statements_however_large_it_is():
    executor = dispatching.started_executor()

    def statements(count):
        executor.parallelism = 1000
        executor.dispatcher.sync()  # what is done now and then is done
        tokens = [
            dispatching.queue_task(executor, map_index=number, run_id=f"of-{count}")
            for number in range(count)
        ]
        seen = []

        def note(*args):
            seen.append(args[2])

        with create_session(scoped=False) as session:
            engine = session.get_bind()
        event.listen(engine, "before_cursor_execute", note)
        try:
            executor.heartbeat()
        finally:
            event.remove(engine, "before_cursor_execute", note)
        assert set(tokens) <= set(executor.celery.artefacts)
        return len(seen)

    assert statements(40) <= statements(1) + 2


def test_fault_32_one_slot_goes_to_the_most_important_task():
    """Known fault 32: the executor takes its own backlog from the wrong end."""
    executor = dispatching.started_executor()
    executor.parallelism = 1
    by_weight = {
        weight: dispatching.queue_task(executor, map_index=weight, priority_weight=weight)
        for weight in (1, 10, 5)
    }
    order = []
    for _ in by_weight:
        executor.heartbeat()
        (token,) = set(executor.celery.artefacts) - set(order)
        order.append(token)
        executor.running.clear()

    assert order == [by_weight[weight] for weight in (10, 5, 1)]
