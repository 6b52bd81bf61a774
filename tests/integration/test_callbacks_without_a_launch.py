# SPDX-License-Identifier: Apache-2.0
"""Callbacks that no launch will finish: of an executor that was replaced, or of one that does not exist."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.models.callback import Callback
from airflow.models.log import Log
from airflow.utils.session import create_session
from sqlalchemy import JSON, bindparam, select, text, update

from dispatcher.dispatch import forgotten
from dispatcher.dispatch.forgotten import ForgottenCallbacks
from dispatcher.ledger import callbacks
from dispatcher.ledger.leftovers import schedulers_alive
from tests.support import callback_dispatching as on
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")

PATIENCE = 600.0


class Look:
    """Looks for forgotten callbacks as the executor of one scheduler does, whenever the test says."""

    def __init__(self, owner=None) -> None:
        if owner is None:
            with create_session(scoped=False) as session:
                owner = str(rows.make_scheduler_job(session).id)
        self.now = 1000.0
        self._looks = ForgottenCallbacks(
            owner=owner,
            team=None,
            own={None, "HybridExecutor", "dispatcher.executor.HybridExecutor"},
            patience=PATIENCE,
            session=lambda: create_session(scoped=False),
            clock=lambda: self.now,
            utcnow=rows.utcnow,
        )

    def after(self, seconds=0.0):
        self.now += seconds
        self._looks.look()


@pytest.fixture
def look():
    return Look()


def row(callback_id):
    with create_session(scoped=False) as session:
        found = session.get(Callback, callback_id)
        return found.state, found.output


def event_log():
    with create_session(scoped=False) as session:
        found = session.scalars(select(Log).where(Log.event == forgotten.EVENT)).all()
        return [(one.dag_id, one.run_id, one.extra) for one in found]


def pending_for_long(**columns):
    callback_id = on.new_callback(**columns)
    with create_session(scoped=False) as session:
        early = rows.utcnow() - 2 * forgotten.PENDING_FOR
        session.execute(update(Callback).where(Callback.id == callback_id).values(created_at=early))
    return callback_id


@pytest.mark.parametrize("state", ["queued", "running"])
def test_one_of_an_executor_that_was_replaced_fails_after_a_while(look, state):
    callback_id = on.new_callback(state=state)
    look.after()
    look.after(PATIENCE - 1)
    assert row(callback_id) == (state, None)

    look.after(forgotten.INTERVAL)
    found, output = row(callback_id)
    assert found == "failed"
    assert output == (
        f"outcome unknown: it was {state} when the executor that had it went away, and no launch of it is "
        "recorded; it may or may not have run"
    )


def test_one_that_goes_on_meanwhile_is_waited_for_anew(look):
    callback_id = on.new_callback(state="queued")
    look.after()
    with create_session(scoped=False) as session:
        session.get(Callback, callback_id).state = "running"
    look.after(PATIENCE)
    assert row(callback_id) == ("running", None)


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"state": "queued", "executor": "CeleryExecutor"}, id="of another executor"),
        pytest.param({"state": "pending"}, id="pending"),
        pytest.param({"state": "success"}, id="ended"),
    ],
)
def test_no_other_is_touched(look, columns):
    callback_id = on.new_callback(**columns)
    look.after()
    look.after(PATIENCE)
    assert row(callback_id) == (columns["state"], None)


def test_one_of_ours_is_left_to_its_launch(look):
    executor = run.started_executor()
    callback_id, _ = on.sent_callback(executor)
    look.after()
    look.after(PATIENCE)
    assert row(callback_id) == ("queued", None)


def test_one_scheduler_looks_for_all():
    first = Look()
    second = Look()
    with create_session(scoped=False) as session:
        assert len(schedulers_alive(session.connection())) == 2
    callback_id = on.new_callback(state="queued")
    second.after()
    second.after(PATIENCE)
    assert row(callback_id) == ("queued", None)
    first.after()
    first.after(PATIENCE)
    assert row(callback_id)[0] == "failed"


def test_a_pending_one_that_names_an_unknown_executor_is_told_where_people_look(look, caplog):
    callback_id = pending_for_long(executor="GoneExecutor")
    pending_for_long(executor="dispatcher.executor.HybridExecutor")
    pending_for_long()
    on.new_callback(executor="GoneExecutor")  # a moment ago

    look.after()
    look.after(forgotten.INTERVAL)

    ((dag_id, run_id, extra),) = event_log()
    assert (dag_id, run_id) == (rows.DAG_ID, rows.RUN_ID)
    assert str(callback_id) in extra
    assert "names the executor 'GoneExecutor', which is not one of [core] executor" in extra
    assert [one.getMessage() for one in caplog.records if "GoneExecutor" in one.getMessage()] == [extra]
    assert row(callback_id) == ("pending", None)


def made_before(others, columns):
    """Add a callback after others, which come first in every look."""
    first = rows.utcnow() - 2 * forgotten.PENDING_FOR
    for number in range(others + 1):
        callback_id = on.new_callback(**columns(number))
        with create_session(scoped=False) as session:
            session.get(Callback, callback_id).created_at = first + number * timedelta(milliseconds=1)
    return callback_id


def test_those_of_other_executors_hide_none(look, monkeypatch):
    monkeypatch.setattr(forgotten, "MOST", 2)
    monkeypatch.setattr(callbacks, "READ_AT_ONCE", 2)
    ours = made_before(5, lambda n: {"state": "queued", "executor": "CeleryExecutor" if n < 5 else None})
    for _ in range(3):
        look.after(forgotten.INTERVAL)
    look.after(PATIENCE)
    assert row(ours)[0] == "failed"


def test_those_that_only_wait_for_their_turn_hide_none(look, monkeypatch):
    monkeypatch.setattr(forgotten, "MOST", 2)
    last = made_before(5, lambda n: {"executor": "HybridExecutor" if n < 5 else "GoneExecutor"})
    for _ in range(3):
        look.after(forgotten.INTERVAL)
    ((_, _, extra),) = event_log()
    assert str(last) in extra


def test_more_of_ours_than_a_look_reads_fail_in_their_turn(look, monkeypatch):
    monkeypatch.setattr(forgotten, "MOST", 2)
    made_before(4, lambda _: {"state": "queued"})
    for _ in range(6):
        look.after(PATIENCE)
    with create_session(scoped=False) as session:
        assert set(session.scalars(select(Callback.state))) == {"failed"}


def test_no_more_data_than_that_are_read_at_once(look, monkeypatch):
    monkeypatch.setattr(callbacks, "READ_AT_ONCE", 2)
    ids = [made_before(0, lambda _: {"state": "queued"}) for _ in range(5)]
    look.after()
    look.after(PATIENCE)
    assert {row(callback_id)[0] for callback_id in ids} == {"failed"}


def test_data_that_nobody_expects_end_nothing(look):
    odd = on.new_callback(state="queued")
    with create_session(scoped=False) as session:
        session.get(Callback, odd).data = {"executor": ["a", "list"], "dag_id": 7, "dag_run_id": "none"}
    callback_id = on.new_callback(state="queued")
    look.after()
    look.after(PATIENCE)
    assert row(callback_id)[0] == "failed"
    assert row(odd)[0] == "queued", "it names another executor"


@pytest.mark.parametrize(
    "columns", [{"state": "queued"}, {"executor": "GoneExecutor"}], ids=["sent", "pending"]
)
def test_one_whose_data_cannot_be_read_hides_none(look, caplog, columns):
    first, unreadable, last = (pending_for_long(**columns) for _ in range(3))
    with create_session(scoped=False) as session:
        data = {"__type": "of another version", "__var": {}}
        statement = text("UPDATE callback SET data = :data WHERE id = :id")
        types = bindparam("data", type_=JSON), bindparam("id", type_=Callback.id.type)
        session.execute(statement.bindparams(*types), {"data": data, "id": unreadable})

    for _ in range(3):
        look.after(PATIENCE)

    told = [one.getMessage() for one in caplog.records if "cannot be read" in one.getMessage()]
    assert told == [f"Callback {unreadable} cannot be read and is left alone (TypeError)"]
    if "state" in columns:
        assert {row(first)[0], row(last)[0]} == {"failed"}
    else:
        assert len(event_log()) == 2


def test_the_executor_looks_by_itself():
    executor = run.started_executor()
    pending_for_long(executor="GoneExecutor")
    run.loop(executor)
    assert len(event_log()) == 1
