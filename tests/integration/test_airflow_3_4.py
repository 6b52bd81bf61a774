# SPDX-License-Identifier: Apache-2.0
"""What Airflow 3.4 alone has: archived tries, regions, events that are put back, starts of callbacks."""

from __future__ import annotations

from uuid import UUID

import jwt
import pytest
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.callback import CallbackKey
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select, update

from dispatcher.backends.base import Observation
from dispatcher.compat import AIRFLOW_3_4_PLUS, task_key
from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger import store, subjects, submitting
from dispatcher.ledger.standing import open_page
from tests.support import dispatching as run
from tests.support.callback_calls import callback_row, callback_worker, queued_callback_launch
from tests.support.fence_calls import LATER_CALLS, assert_refused, guarded, launch_row, queued_launch
from tests.support.launches import OWNER, add_launch_of
from tests.support.rows import make_callback, make_dag, make_dag_run, make_task_instance, utcnow

pytestmark = [
    pytest.mark.usefixtures("airflow_db"),
    pytest.mark.skipif(not AIRFLOW_3_4_PLUS, reason="Airflow 3.3 has none of it"),
]

REFRESHED = "Refreshed-API-Token"


def archive(session, launch):
    """Let a clear archive the try. If it is queued, the row stays QUEUED under its token."""
    session.rollback()
    instance = session.get(TaskInstance, UUID(launch.subject_id), populate_existing=True)
    before = instance.state
    instance.archive(reason="superseded", session=session)
    session.commit()
    assert instance.external_executor_id == launch.token
    assert instance.state == ("queued" if before == "queued" else "failed")


class TestArchivedTries:
    @pytest.fixture
    def launch(self, db_session):
        return queued_launch(db_session)

    def test_they_are_not_seen(self, db_session, launch):
        archive(db_session, launch)
        connection = db_session.connection()

        assert subjects.lock_task_instance(connection, UUID(launch.subject_id)) is None
        assert [one.task_state for one in open_page(connection, OWNER, None, after=0, size=9)] == [None]
        assert subjects.subjects_of(connection, [launch]) == {}
        assert submitting.submit_tasks(connection, [launch.token], owner=OWNER, now=utcnow()) == {}

    def test_they_cannot_be_claimed(self, db_session, execution_client, launch):
        archive(db_session, launch)

        assert_refused(guarded(execution_client, launch).run(), "launch_superseded")
        assert launch_row(db_session, launch.token).claimant is None

    @pytest.mark.parametrize("call", [call for call in LATER_CALLS if call != "rtif"])
    def test_their_calls_are_refused(self, db_session, execution_client, launch, call):
        """Airflow answers most of them before the route begins: 410."""
        worker = guarded(execution_client, launch)
        assert worker.run().status_code == 200
        archive(db_session, launch)

        assert_refused(getattr(worker, call)(), "launch_superseded")

    def test_a_late_rtif_report_is_answered_by_airflow(self, db_session, execution_client, launch):
        """Its supervisor tolerates it by that answer alone."""
        archive(db_session, launch)

        assert guarded(execution_client, launch).rtif().status_code == 410

    def test_a_token_that_is_not_in_the_ledger_is_left_to_airflow(self, db_session, execution_client, launch):
        archive(db_session, launch)
        other = str(UUID(int=5))

        worker = guarded(execution_client, launch).but(header=other, claim=other)

        assert worker.run().status_code == 410

    def test_the_next_try_stands_in_their_place(self, db_session, launch):
        instance = db_session.get(TaskInstance, UUID(launch.subject_id))
        successor = instance.prepare_db_for_next_try(db_session)
        db_session.commit()

        (subject,) = subjects.subjects_of(db_session.connection(), [launch]).values()

        assert (subject.id, subject.token) == (str(successor.id), None)

    def test_the_end_of_a_cleared_task_makes_room_for_the_next_try(self):
        executor = run.started_executor()
        token = run.queue_task(executor)
        run.loop(executor)
        run.claim(token)
        with create_session(scoped=False) as session:
            instance = session.scalars(select(TaskInstance)).one()
            instance.state = "restarting"
        executor.celery.end(Observation(token, ok=False, reason="killed"))

        executor.heartbeat()
        run_events(executor)

        with create_session(scoped=False) as session:
            (successor,) = session.scalars(select(TaskInstance))
            assert str(successor.id) != run.launch_of(token).subject_id
            assert (successor.try_number, successor.external_executor_id) == (2, None)
        assert run.loop(executor) == {}


def run_events(executor):
    """Let the scheduler take in what the executor reports."""
    with create_session(scoped=False) as session:
        runner = SchedulerJobRunner(job=session.get(Job, executor.job_id), executors=[executor])
        runner._process_executor_events(executor, session)


class TestRegions:
    @staticmethod
    def launches(session, *regions):
        instances = [
            make_task_instance(session, map_index=0, region_id=region, try_number=number)
            for number, region in enumerate(regions, start=1)
        ]
        found = [add_launch_of(session, one, state=LaunchState.SUBMITTED) for one in instances]
        session.commit()
        return found

    def test_the_same_index_in_two_regions_is_two_tasks(self, db_session):
        first, second = self.launches(db_session, UUID(int=1), UUID(int=2))
        connection = db_session.connection()

        found = subjects.subjects_of(connection, [first, second])

        assert {token: one.id for token, one in found.items()} == {
            first.token: first.subject_id,
            second.token: second.subject_id,
        }
        assert submitting.older_open(connection, [second.token]) == []

    def test_a_newer_launch_makes_those_of_its_own_region_old(self, db_session):
        _, second = self.launches(db_session, UUID(int=1), UUID(int=2))
        third = add_launch_of(
            db_session, db_session.get(TaskInstance, UUID(second.subject_id)), token=str(UUID(int=3))
        )

        assert submitting.older_open(db_session.connection(), [third.token]) == [second]

    def test_a_launch_is_issued_with_its_region(self, db_session):
        from airflow.models.dynamic_region import DynamicRegion

        executor = run.started_executor()
        make_dag(db_session)
        region = DynamicRegion(dag_id="dag", run_id=make_dag_run(db_session).run_id, node_id="task")
        db_session.add(region)
        db_session.commit()

        token = run.queue_task(executor, map_index=2, region_id=region.id)

        launch = run.launch_of(token)
        assert (launch.region_id, launch.map_index) == (str(region.id), 2)
        assert run.loop(executor) == {}
        assert run.launch_of(token).state is LaunchState.SUBMITTED
        (standing,) = open_page(db_session.connection(), str(executor.job_id), None, after=0, size=10)
        assert (standing.token, standing.task_state) == (token, "queued")

    def test_a_task_of_another_region_with_its_token_is_not_its_task(self, db_session):
        """The place is looked up whole: without the region, every lookup would go through all siblings."""
        (launch,) = self.launches(db_session, UUID(int=1))
        make_task_instance(db_session, map_index=0, region_id=UUID(int=2), token=launch.token, try_number=2)
        connection = db_session.connection()
        db_session.execute(
            update(TaskInstance)
            .where(TaskInstance.region_id == UUID(int=1))
            .values(external_executor_id=None)
        )

        (standing,) = open_page(connection, OWNER, None, after=0, size=10)
        assert (standing.token, standing.task_state) == (launch.token, None)


def test_an_event_that_airflow_puts_back_is_decided_anew():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    executor.celery.end(Observation(token, ok=False, reason="killed"))
    executor.heartbeat()
    events = executor.get_event_buffer()
    assert events == {task_key(run.launch_of(token)): ("failed", "killed")}

    executor.event_buffer.update(events)
    with create_session(scoped=False) as session:
        session.scalars(select(TaskInstance)).one().external_executor_id = str(UUID(int=9))

    assert executor.get_event_buffer() == {}


def test_events_of_other_dags_are_kept_back():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    executor.celery.end(Observation(token, ok=False, reason="killed"))
    executor.heartbeat()

    assert executor.get_event_buffer(["other"]) == {}
    assert len(executor.get_event_buffer(["dag"])) == 1


def test_an_adopted_task_without_a_launch_takes_no_slot():
    executor = run.started_executor()
    with create_session(scoped=False) as session:
        stranger = make_task_instance(session, state="running", token=None)
        assert executor.try_adopt_task_instances([stranger]) == []
    assert executor.slots_occupied == 1

    run.loop(executor)

    assert executor.slots_occupied == 0


class TestStartOfACallback:
    @pytest.fixture
    def launch(self, db_session):
        return queued_callback_launch(db_session)

    @pytest.fixture
    def worker(self, execution_client, launch):
        return callback_worker(execution_client, launch).but(scope="callback")

    def test_it_claims_the_launch(self, db_session, worker, launch):
        answer = worker.start()

        assert answer.status_code == 204, answer.text
        assert callback_row(db_session, launch.subject_id).state == "running"
        row = launch_row(db_session, launch.token)
        assert (row.state, row.claimant) == (LaunchState.CLAIMED, f"nonce:{worker.claimant}")
        claims = jwt.decode(answer.headers[REFRESHED], options={"verify_signature": False})
        assert (claims["sub"], claims["scope"]) == (launch.subject_id, "execution")
        assert claims["launch_token"] == launch.token

    @pytest.mark.parametrize("first", ["start", "run"])
    def test_the_same_claimant_gets_a_fresh_token(self, db_session, worker, launch, first):
        """Rule 19: Airflow's own endpoint takes a callback's token once."""
        getattr(worker, first)()
        before = launch_row(db_session, launch.token)

        answer = worker.start()

        assert (answer.status_code, answer.content) == (204, b"")
        claims = jwt.decode(answer.headers[REFRESHED], options={"verify_signature": False})
        assert (claims["scope"], claims["launch_token"]) == ("execution", launch.token)
        assert launch_row(db_session, launch.token) == before
        assert worker.report().status_code == 204

    def test_another_claimant_is_refused(self, worker):
        worker.start()

        answer = worker.but(claimant="other").start()

        assert_refused(answer, "launch_consumed")
        assert REFRESHED not in answer.headers

    def test_a_stock_worker_claims_once(self, worker):
        """It sends no nonce, and its call does not tell who it is."""
        stock = worker.but(header=None, claimant=None)

        assert stock.start().status_code == 204
        assert_refused(stock.start(), "launch_consumed")

    def test_an_older_launch_after_a_newer_one_was_claimed(self, db_session, worker, launch):
        callback = callback_row(db_session, launch.subject_id)
        newer = queued_callback_launch(db_session, callback)
        assert worker.but(header=newer.token, claim=newer.token).start().status_code == 204

        assert_refused(worker.but(claimant="other").start(), "launch_consumed")

    def test_a_launch_that_was_revoked(self, db_session, worker, launch):
        from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind

        store.record(
            db_session.connection(),
            LaunchEvent.REVOKE,
            [launch.token],
            now=utcnow(),
            kind=LaunchKind.CALLBACK,
        )
        db_session.commit()

        assert_refused(worker.start(), "launch_revoked")
        assert callback_row(db_session, launch.subject_id).state == "queued"

    def test_without_a_token_airflow_decides(self, db_session, worker, launch):
        """A callback that another executor sent."""
        plain = worker.but(header=None, claimant=None, claim=None)

        assert plain.start().status_code == 204
        assert plain.start().status_code == 409
        assert launch_row(db_session, launch.token).state is LaunchState.SUBMITTED

    def test_a_claim_that_airflow_does_not_take_is_not_kept(self, db_session, execution_client):
        """It goes by the state of the callback, in the same transaction."""
        launch = queued_callback_launch(db_session, make_callback(db_session, state="running"))

        answer = callback_worker(execution_client, launch).but(scope="callback").start()

        assert answer.status_code == 409
        assert launch_row(db_session, launch.token).state is LaunchState.SUBMITTED

    def test_an_unknown_callback(self, worker):
        assert worker.but(callback_id=UUID(int=7)).start().status_code == 404


def test_the_key_of_a_callback_is_the_same_in_both_versions(db_session):
    executor = run.started_executor()
    callback = make_callback(db_session, state="queued")
    db_session.commit()

    run.queue_callback(executor, callback.id)

    assert list(executor.callback_queue) == [CallbackKey(id=str(callback.id))]
