# SPDX-License-Identifier: Apache-2.0
"""Rule 20: old launches leave the ledger, but never one whose token an unfinished task still carries."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import delete, select, update
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import OperationalError

from dispatcher import settings
from dispatcher.dispatch import pruning as dispatch_pruning
from dispatcher.dispatch.pruning import PRUNING_INTERVAL, Pruner
from dispatcher.domain.lifecycle import ENDED, OPEN, LaunchKind, LaunchState
from dispatcher.ledger import pruning
from dispatcher.ledger.models import LaunchRow
from tests.support import dispatching as run
from tests.support import rows
from tests.support.launches import add_launch, add_launch_of, build_launch

pytestmark = pytest.mark.usefixtures("airflow_db")

RETENTION = timedelta(days=30)
MINUTE = timedelta(minutes=1)
UNFINISHED = [
    None, "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule",
]  # fmt: skip
FINISHED = ["success", "failed", "skipped", "upstream_failed", "removed"]


def long_ago(state=LaunchState.SUCCEEDED, age=RETENTION + MINUTE):
    """The columns of a launch that ended and was settled so long ago."""
    then = rows.utcnow() - age
    return {"state": state, "issued_at": then, "ended_at": then, "settled_at": then}


def add(**columns):
    """Add an old launch of a task that is gone and return its token; ``columns`` are what differs."""
    with create_session(scoped=False) as session:
        return add_launch(session, **long_ago() | {"task_id": "gone"} | columns).token


def add_with_task(state, token=None, **columns):
    """Add an old launch and a task that carries its token or another, and return the launch's."""
    with create_session(scoped=False) as session:
        ti = rows.make_task_instance(session, state=state)
        launch = add_launch_of(session, ti, **long_ago() | columns)
        if token is not None:
            ti.external_executor_id = token
        return launch.token


def left():
    with create_session(scoped=False) as session:
        return set(session.scalars(select(LaunchRow.token)))


def scheduler():
    with create_session(scoped=False) as session:
        return str(rows.make_scheduler_job(session).id)


class Clocked:
    """Prunes as the executor of one scheduler does, whenever the test says."""

    def __init__(self, owner=None):
        self.now = 5000.0
        self.away = False
        self._pruner = Pruner(
            owner=owner or scheduler(),
            retention=RETENTION,
            session=self._session,
            clock=lambda: self.now,
            utcnow=rows.utcnow,
        )

    def _session(self):
        if self.away:
            raise OperationalError("select", {}, Exception("away"))
        return create_session(scoped=False)

    def heartbeat(self, after=0.0):
        self.now += after
        self._pruner.prune()


@pytest.fixture
def prune():
    return Clocked().heartbeat


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_launch_that_ended_long_ago_is_removed(prune, state):
    add(state=state)
    prune()
    assert left() == set()


@pytest.mark.parametrize("age", [MINUTE, RETENTION - MINUTE], ids=["a minute", "almost the retention"])
def test_one_that_ended_since_is_kept(prune, age):
    token = add(**long_ago(age=age))
    prune()
    assert left() == {token}


@pytest.mark.parametrize("state", sorted(OPEN))
def test_an_open_one_is_kept_however_old(prune, state):
    columns = {"state": state, "ended_at": None, "settled_at": None}
    tokens = {add(**columns), add(state=state)}
    prune()
    assert left() == tokens


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"settled_at": None}, id="not settled"),
        pytest.param({"settled_at": rows.utcnow()}, id="settled late"),
        pytest.param({"ended_at": rows.utcnow()}, id="ended late"),
        pytest.param({"ended_at": None}, id="no end"),
    ],
)
def test_one_that_is_not_old_in_all_respects_is_kept(prune, columns):
    token = add(**columns)
    prune()
    assert left() == {token}


@pytest.mark.parametrize("state", UNFINISHED)
def test_one_whose_token_an_unfinished_task_carries_is_kept(prune, state):
    token = add_with_task(state)
    prune()
    assert left() == {token}


@pytest.mark.parametrize("state", UNFINISHED)
def test_it_is_kept_also_where_a_clear_gave_the_task_another_uuid(prune, state):
    token = add_with_task(state, subject_id=str(uuid.uuid4()))
    prune()
    assert left() == {token}


@pytest.mark.parametrize("state", FINISHED)
def test_one_whose_task_is_finished_is_removed(prune, state):
    add_with_task(state)
    prune()
    assert left() == set()


@pytest.mark.parametrize("state", UNFINISHED)
def test_one_whose_task_carries_another_token_is_removed(prune, state):
    add_with_task(state, token=str(uuid.uuid4()))
    prune()
    assert left() == set()


@pytest.mark.parametrize("read", [0, 1], ids=["before the read", "between read and removal"])
def test_a_task_that_is_cleared_meanwhile_keeps_its_launch(prune, monkeypatch, read):
    token = add_with_task("success")
    read_subjects = pruning.subjects_of

    def cleared_after(connection, launches):
        found = read_subjects(connection, launches)
        connection.execute(update(TaskInstance).values(state="up_for_retry"))
        return found if read else read_subjects(connection, launches)

    monkeypatch.setattr(pruning, "subjects_of", cleared_after)
    prune()
    assert left() == {token}


@pytest.mark.parametrize("state", ["scheduled", "pending", "queued", "running"])
def test_one_whose_callback_has_not_ended_is_kept(prune, state):
    """Without its launch the callback would be one of those that nobody launched."""
    with create_session(scoped=False) as session:
        callback = rows.make_callback(session, state=state)
    token = add(kind=LaunchKind.CALLBACK, subject_id=str(callback.id))
    prune()
    assert left() == {token}


@pytest.mark.parametrize("state", ["success", "failed", "deleted"])
def test_one_whose_callback_has_ended_or_is_gone_is_removed(prune, state):
    with create_session(scoped=False) as session:
        callback = rows.make_callback(session, state="success" if state == "deleted" else state)
        add_launch(session, **long_ago(), kind=LaunchKind.CALLBACK, subject_id=str(callback.id))
        if state == "deleted":
            session.execute(delete(type(callback)).where(type(callback).id == callback.id))
    prune()
    assert left() == set()


def test_a_heartbeat_removes_no_more_than_a_batch_and_the_next_goes_on(prune, monkeypatch):
    monkeypatch.setattr(dispatch_pruning, "BATCH", 3)
    at_once = long_ago()
    for _ in range(7):
        add(**at_once)
    seen = []
    for _ in range(4):
        prune()
        seen.append(len(left()))
    assert seen == [4, 1, 0, 0]


def test_what_must_stay_is_in_nobodys_way(prune, monkeypatch):
    """More of them than a batch holds were settled first, and at one time with what is to go."""
    monkeypatch.setattr(dispatch_pruning, "BATCH", 3)
    at_once = long_ago()
    with create_session(scoped=False) as session:
        callback_id = str(rows.make_callback(session, state="running").id)
    kept = {add(**at_once, kind=LaunchKind.CALLBACK, subject_id=callback_id) for _ in range(7)}
    add(**at_once)
    add(**long_ago(age=RETENTION + MINUTE / 2))
    for _ in range(4):
        prune()
    assert left() == kept
    # From the beginning the next time, as they may have ended.
    late = add(**at_once)
    for _ in range(3):
        assert late in left()
        prune(after=PRUNING_INTERVAL)
    assert left() == kept


def test_it_is_looked_for_once_an_hour(prune):
    prune()
    add()
    prune(after=PRUNING_INTERVAL - 1)
    assert len(left()) == 1
    prune(after=1)
    assert left() == set()


def test_of_several_schedulers_one_prunes():
    first, second = scheduler(), scheduler()
    token = add()
    Clocked(second).heartbeat()
    assert left() == {token}
    Clocked(first).heartbeat()
    assert left() == set()


def test_two_that_do_so_at_once_do_no_harm():
    before = rows.utcnow() - RETENTION
    add(), add()
    with create_session(scoped=False) as session:
        batches = [
            pruning.old_launches(session.connection(), before=before, after=None, limit=10) for _ in range(2)
        ]
        removed = [pruning.remove(session.connection(), batch, before=before) for batch in batches]
    assert [len(batch) for batch in batches] == [2, 2]
    assert removed == [2, 0]
    assert left() == set()


def test_a_database_that_fails_is_told_and_asked_again_later(caplog):
    clocked = Clocked()
    add()
    clocked.away = True
    clocked.heartbeat()
    assert "No old launches are removed: the database failed (OperationalError)" in caplog.messages
    clocked.away = False
    clocked.heartbeat(after=PRUNING_INTERVAL)
    assert left() == set()


def test_the_executor_prunes_after_the_days_that_are_set(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__LAUNCH_RETENTION_DAYS", "7")
    week = timedelta(days=7)
    add(**long_ago(age=week + MINUTE))
    kept = add(**long_ago(age=week - MINUTE))
    run.loop(run.started_executor())
    assert left() == {kept}


def test_mysql_takes_the_statement():
    """It refuses a subquery on the table that is deleted from, and a limit in one."""
    statement = str(pruning.removal([build_launch().token], rows.utcnow()).compile(dialect=mysql.dialect()))
    assert statement.startswith("DELETE FROM dispatcher_launch WHERE")
    assert statement.count("FROM dispatcher_launch") == 1
    assert "FROM task_instance \nWHERE" in statement
    assert "LIMIT" not in statement


def test_the_longest_retention_that_is_allowed_is_no_trouble_to_the_loop(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__LAUNCH_RETENTION_DAYS", str(settings.LONGEST_DAYS))
    token = add()
    assert run.loop(run.started_executor()) == {}
    assert left() == {token}
