# SPDX-License-Identifier: Apache-2.0
"""A3: no route, invalid configuration, broker down. Today the scheduler crash-loops.

Right: the callback is FAILED or kept for later, and no exception leaves ``queue_workload`` or the loop.
"""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from airflow.models.callback import ExecutorCallback
from airflow.utils.session import create_session

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.domain.routing import Router
from tests.support import callback_dispatching as on
from tests.support import dispatching as run
from tests.support import processes
from tests.support import service_dispatching as services

pytestmark = pytest.mark.usefixtures("airflow_db")

BY_PATH = json.dumps([{"match": {"callback": "alerts.*"}, "backend": "kubernetes"}])
LONG = "x" * 300


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"path": None}, id="no path"),
        pytest.param({"path": 7, "dag_id": 7}, id="numbers for names"),
        pytest.param({"queue": ["a", "list"]}, id="a list for a queue"),
        pytest.param({"queue": LONG, "dag_id": LONG}, id="names that no column holds"),
    ],
)
def test_odd_data_leave_it_to_the_built_in_route(monkeypatch, data):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__ROUTES", BY_PATH)
    executor = run.started_executor()
    callback_id = on.new_callback()
    with create_session(scoped=False) as session:
        callback = session.get(ExecutorCallback, callback_id)
        callback.data = {**callback.data, **data}
    run.queue_callback(executor, callback_id)

    assert run.loop(executor) == {}
    (launch,) = services.launches_of(callback_id)
    assert (launch.state, launch.queue) == (LaunchState.SUBMITTED, "callbacks")
    assert executor.celery.sends == [launch.token]


def test_what_goes_wrong_at_the_issue_fails_that_callback_alone(monkeypatch):
    executor = run.started_executor()
    route = Router.route

    def broken(router, view):
        if view.callback == "broken":
            raise LookupError("no way leads there")
        return route(router, view)

    monkeypatch.setattr(Router, "route", broken)
    bad, good = on.new_callback(path="broken"), on.new_callback()
    for callback_id in (bad, good):
        run.queue_callback(executor, callback_id)

    ((key, (state, info)),) = run.loop(executor).items()
    assert (key.id, state) == (str(bad), "failed")
    assert "LookupError: no way leads there" in info
    assert [one.state for one in services.launches_of(good)] == [LaunchState.SUBMITTED]
    assert executor.slots_occupied == 1


def test_arguments_that_are_no_json_fail_it_and_nothing_else():
    executor = run.started_executor()
    bad, good = on.new_callback(), on.new_callback()
    for callback_id in (bad, good):
        run.queue_callback(executor, callback_id)
    (flight,) = [one for one in executor.dispatcher.in_flight() if one.key.id == str(bad)]
    flight.workload.callback.data["kwargs"] = {"lone surrogate": "\ud800"}

    told = on.turn(executor, 2)
    assert [(key.id, state) for key, (state, _) in told] == [(str(bad), "failed")]
    assert "cannot be written as JSON" in told[0][1][1]
    assert executor.slots_occupied == 1
    on.hear(told)
    on.turn(executor, 2)
    assert on.settled(bad)


@pytest.mark.parametrize(
    ("broker", "why"),
    [
        pytest.param("redis://127.0.0.1:{port}/0", "The Celery broker is away", id="broker down"),
        pytest.param("redis://user:secret@host:port/0", "cannot be read", id="broker address unreadable"),
    ],
)
def test_without_a_broker_it_is_kept_and_fails_when_its_time_is_up(monkeypatch, broker, why):
    address = broker.replace("{port}", str(processes.free_port()))
    monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", address)
    monkeypatch.setenv("AIRFLOW__CELERY__RESULT_BACKEND", "db+sqlite://")
    with services.started_executor() as executor:
        callback_id = on.new_callback()
        run.queue_callback(executor, callback_id)
        assert run.loop(executor) == {}
        assert on.state(callback_id) == "queued"
        assert executor.slots_occupied == 1

        on.issued_ago(callback_id, timedelta(seconds=601))
        told = on.sweep(executor)

        ((key, (state, info)),) = told
        assert (key.id, state) == (str(callback_id), "failed")
        assert info.startswith("no worker started it within 600 s: ")
        assert why in info
        assert "secret" not in info
        assert executor.slots_occupied == 0
