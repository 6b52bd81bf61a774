# SPDX-License-Identifier: Apache-2.0
"""Rule 10: the fence fires on every fenced call, and a route that it does not see cannot commit.

The table of statements names what Airflow's routes do today. Where an upgrade changes it, the fence has to be
looked at, even if the other tests still pass.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from airflow import settings
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi import FastAPI
from sqlalchemy import event, select, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from starlette.testclient import TestClient

from dispatcher.compat import AIRFLOW_3_4_PLUS
from dispatcher.fence.middleware import FenceMiddleware
from dispatcher.fence.session_hook import is_locked_select
from tests.support.fence_calls import (
    LATER_CALLS,
    assert_refused,
    guarded,
    launch_row,
    queued_launch,
    requeue,
    stock,
    task_instance,
)

STATEMENTS = {
    "run": ["SELECT FOR UPDATE", "UPDATE"],
    "heartbeat": ["UPDATE"],
    "rtif": ["SELECT"],
    "rendered_map_index": ["UPDATE"],
    "skip_downstream": ["SELECT", "UPDATE"],
    "report": ["SELECT FOR UPDATE", "SELECT FOR UPDATE", "UPDATE"],
}
if AIRFLOW_3_4_PLUS:
    # With nothing to skip it writes nothing.
    STATEMENTS["skip_downstream"] = ["SELECT"]


def _but_plain(statements):
    return {call: [one for one in made if one != "SELECT"] for call, made in statements.items()}


@pytest.fixture
def statements():
    """Record the statements about task instances that sessions of this process execute."""
    seen = []

    def record(state):
        if any(mapper.class_ is TaskInstance for mapper in state.all_mappers):
            locked = "SELECT FOR UPDATE" if is_locked_select(state) else "SELECT"
            seen.append(locked if state.is_select else "UPDATE")

    event.listen(Session, "do_orm_execute", record)
    yield seen
    event.remove(Session, "do_orm_execute", record)


@pytest.fixture
def launch(db_session):
    return queued_launch(db_session)


class TestAirflowsRoutes:
    def test_they_work_by_these_statements(self, execution_client, launch, statements):
        worker = stock(execution_client, launch).but(claim=None)
        seen = {}
        for call in STATEMENTS:
            statements.clear()
            assert getattr(worker, call)().is_success
            seen[call] = list(statements)

        if AIRFLOW_3_4_PLUS:
            # How often it looks before that differs: is the try archived, is it the gate of a loop?
            assert all("SELECT" in seen[call] for call in STATEMENTS if "SELECT" in STATEMENTS[call])
            assert _but_plain(seen) == _but_plain(STATEMENTS)
        else:
            assert seen == STATEMENTS

    def test_the_heartbeats_slow_path(self, execution_client, launch, statements):
        worker = stock(execution_client, launch).but(claim=None)
        worker.run()
        statements.clear()

        assert worker.but(pid=8).heartbeat().status_code == 409
        assert statements == ["UPDATE", "SELECT FOR UPDATE"]

    @pytest.mark.parametrize("call", LATER_CALLS)
    def test_every_call_is_judged(self, db_session, execution_client, launch, call):
        worker = guarded(execution_client, launch)
        assert worker.run().status_code == 200
        requeue(db_session, launch.subject_id)

        assert_refused(getattr(worker, call)(), "launch_superseded")

    def test_the_locks_are_seen_in_every_form(self, db_session, launch):
        """SQLAlchemy has no public way to ask for them."""
        seen = []

        def record(state):
            seen.append(is_locked_select(state))

        event.listen(db_session, "do_orm_execute", record)
        key = task_instance(db_session, launch.subject_id).id
        plain = select(TaskInstance.state).where(TaskInstance.id == key)
        seen.clear()
        db_session.execute(plain)
        db_session.execute(plain.with_for_update(of=TaskInstance))
        db_session.scalars(select(TaskInstance).with_for_update()).first()
        db_session.get(TaskInstance, key, populate_existing=True)
        db_session.get(TaskInstance, key, with_for_update=True)
        db_session.get(TaskInstance, key, with_for_update={"of": TaskInstance})

        assert seen == [False, True, True, False, True, True]

    def test_a_failed_claim_leaves_no_claim(self, db_session, execution_client, launch):
        """Airflow fails after the judgement, and both are rolled back together."""
        from airflow.models.dagrun import DagRun

        def fail(state):
            if any(mapper.class_ is DagRun for mapper in state.all_mappers):
                raise RuntimeError("the database went away")

        worker = guarded(execution_client, launch)
        event.listen(Session, "do_orm_execute", fail)
        try:
            assert worker.run().status_code == 500
        finally:
            event.remove(Session, "do_orm_execute", fail)

        assert launch_row(db_session, launch.token) == launch
        assert task_instance(db_session, launch.subject_id).state == "queued"
        assert worker.run().status_code == 200


def row(subject_id):
    return TaskInstance.id == subject_id


def locked(subject_id):
    return select(TaskInstance.state).where(row(subject_id)).with_for_update()


def set_failed(session, subject_id):
    session.execute(update(TaskInstance).where(row(subject_id)).values(state="failed"))


@asynccontextmanager
async def asynchronous_session():
    """Yield a session as ``create_session_async`` makes it, on an engine of the loop that asks.

    Each request of the client below has a loop of its own, and the pool of Airflow's engine may hold
    connections of that of ``execution_client``: 3.4's routes use it.
    """
    engine = create_async_engine(settings.SQL_ALCHEMY_CONN_ASYNC, poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session


class TestRoutesOfAnotherShape:
    """Routes as Airflow might have them one day, in place of its own ``/state``."""

    @pytest.fixture
    def worker_on(self, db_session, launch):
        """Return a function that serves a route behind the fence and returns a worker that talks to it."""
        task_instance(db_session, launch.subject_id).state = "running"
        db_session.commit()

        def serve(route, call="state"):
            app = FastAPI()
            path = f"/execution/task-instances/{{subject_id}}/{call}"
            app.add_api_route(path, route, methods=["PATCH"], status_code=204)
            app.add_middleware(FenceMiddleware)
            return guarded(TestClient(app, raise_server_exceptions=False), launch)

        return serve

    @staticmethod
    def state_of(db_session, launch):
        return task_instance(db_session, launch.subject_id).state

    def test_statements_past_the_session_are_not_committed(self, db_session, worker_on, launch):
        def route(subject_id: UUID) -> None:
            with create_session(scoped=False) as session:
                set_failed(session.connection(), subject_id)

        assert worker_on(route).report().status_code == 500
        assert self.state_of(db_session, launch) == "running"

    def test_a_flush_alone_is_not_committed(self, db_session, worker_on, launch):
        def route(subject_id: UUID) -> None:
            with create_session(scoped=False) as session:
                session.get(TaskInstance, subject_id).state = "failed"

        assert worker_on(route).report().status_code == 500
        assert self.state_of(db_session, launch) == "running"

    def test_success_without_the_database_is_not_believed(self, worker_on):
        def route(subject_id: str) -> None:
            return None

        assert worker_on(route).report().status_code == 500

    def test_sessions_that_do_nothing_are_no_bypass(self, db_session, worker_on, launch):
        def route(subject_id: UUID) -> None:
            with create_session(scoped=False):
                pass
            with create_session(scoped=False) as session:
                session.execute(locked(subject_id))
                set_failed(session, subject_id)

        assert worker_on(route).report().status_code == 204
        assert self.state_of(db_session, launch) == "failed"

    @pytest.mark.parametrize("call", ["run", "report", "skip_downstream"])
    def test_an_authorisation_check_is_not_the_route(self, db_session, worker_on, launch, call):
        """Airflow 3.4 reads the task instance in an asynchronous session of its own before the route."""

        async def route(subject_id: UUID) -> None:
            async with asynchronous_session() as session:
                await session.execute(select(TaskInstance.state).where(row(subject_id)))
            with create_session(scoped=False) as session:
                session.execute(locked(subject_id))
                set_failed(session, subject_id)

        path = {"run": "run", "report": "state", "skip_downstream": "skip-downstream"}[call]
        worker = worker_on(route, path)
        task_instance(db_session, launch.subject_id).state = "queued"
        db_session.commit()

        getattr(worker, call)()
        if call == "run":
            assert launch_row(db_session, launch.token).was_claimed
        assert self.state_of(db_session, launch) == "failed"

        requeue(db_session, launch.subject_id)
        assert_refused(getattr(worker, call)(), "launch_superseded")
        assert self.state_of(db_session, launch) == "queued"

    def test_another_session_does_not_wait_for_the_lock(self, db_session, worker_on, launch):
        other = queued_launch(db_session, task_id="other")
        other_id = UUID(other.subject_id)

        def route(subject_id: UUID) -> None:
            with create_session(scoped=False) as session:
                session.execute(locked(subject_id))
                set_failed(session, subject_id)
                with create_session(scoped=False) as second:
                    second.execute(locked(other_id))

        assert worker_on(route).report().status_code == 204
        assert self.state_of(db_session, launch) == "failed"

    def test_a_new_transaction_is_judged_anew(self, db_session, worker_on, launch):
        """The task is queued anew after the route's rollback and before its second attempt."""

        def route(subject_id: UUID) -> None:
            with create_session(scoped=False) as session:
                session.execute(locked(subject_id))
                session.rollback()
                requeue(db_session, subject_id)
                session.execute(locked(subject_id))
                set_failed(session, subject_id)

        assert_refused(worker_on(route).report(), "launch_superseded")
        assert self.state_of(db_session, launch) == "queued"

    def test_an_asynchronous_route_is_fenced_too(self, db_session, worker_on, launch):
        """Airflow 3.4 has one: the heartbeat."""

        async def route(subject_id: UUID) -> None:
            async with asynchronous_session() as session:
                await session.execute(locked(subject_id))
                await session.execute(update(TaskInstance).where(row(subject_id)).values(state="failed"))

        worker = worker_on(route)
        assert worker.report().status_code == 204
        assert self.state_of(db_session, launch) == "failed"
        requeue(db_session, launch.subject_id)
        assert_refused(worker.report(), "launch_superseded")

    def test_outside_a_fenced_request_nothing_happens(self, db_session, launch):
        requeue(db_session, launch.subject_id)

        db_session.execute(locked(task_instance(db_session, launch.subject_id).id))
        db_session.commit()
