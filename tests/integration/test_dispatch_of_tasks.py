# SPDX-License-Identifier: Apache-2.0
"""A task from queue_workload to its settled end, through the executor as the scheduler drives it."""

from __future__ import annotations

import jwt
import pytest

from dispatcher.backends.base import Observation, Postponed, Rejected
from dispatcher.compat import task_key
from dispatcher.domain.lifecycle import BackendName, LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


def test_a_task_is_issued_submitted_and_settled():
    executor = run.started_executor()
    token = run.queue_task(executor)

    issued = run.launch_of(token)
    assert (issued.state, issued.backend, issued.queue) == (LaunchState.ISSUED, BackendName.CELERY, "default")
    assert issued.scheduler_job_id == str(executor.job_id)
    assert executor.slots_occupied == 1

    assert run.loop(executor) == {}
    assert run.launch_of(token).state is LaunchState.SUBMITTED
    assert executor.celery.sends == [token]
    assert (len(executor.task_queue), len(executor.running)) == (0, 1)

    assert run.claim(token)
    run.set_task(token, state="success")
    executor.celery.end(Observation(token, ok=True, claimant="nonce:one"))
    assert run.loop(executor) == {}, "the task has told its own state: nothing is left to report"
    assert executor.slots_occupied == 0
    assert run.launch_of(token).state is LaunchState.SUCCEEDED

    run.loop(executor)
    assert run.launch_of(token).settled_at is not None
    assert executor.celery.artefacts == {}, "the artefact goes only after the launch is settled"


def test_the_workload_is_signed_with_its_token_at_the_send():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)

    claims = jwt.decode(executor.celery.artefacts[token].workload.token, options={"verify_signature": False})
    assert claims["launch_token"] == token
    assert claims["scope"] == "workload"
    assert claims["sub"] == run.launch_of(token).subject_id
    assert claims["exp"] - claims["iat"] == 1200, "twice [scheduler] task_queued_timeout"


def test_the_queue_of_kubernetes_goes_there():
    executor = run.started_executor()
    token = run.queue_task(executor, queue="kubernetes")
    run.loop(executor)

    assert run.launch_of(token).route_reason == "kubernetes_queue"
    assert list(executor.kubernetes.artefacts) == [token]


def test_a_task_without_a_token_gets_one():
    executor = run.started_executor()
    token = run.queue_task(executor, token=None)

    assert run.launch_of(token).state is LaunchState.ISSUED


def test_a_send_that_may_have_arrived_is_repeated_with_the_same_token():
    executor = run.started_executor()
    token = run.queue_task(executor)
    executor.celery.answers[token] = Postponed("no answer", retry_after=0.0, ambiguous=True)
    run.loop(executor)
    assert (len(executor.task_queue), len(executor.running)) == (1, 0)

    del executor.celery.answers[token]
    run.loop(executor)
    assert executor.celery.sends == [token, token]
    assert (len(executor.task_queue), len(executor.running)) == (0, 1)


def test_what_a_backend_rejects_fails_that_task_alone_with_the_reason():
    executor = run.started_executor()
    bad = run.queue_task(executor, task_id="bad")
    good = run.queue_task(executor, task_id="good")
    executor.celery.answers[bad] = Rejected("pod_override is not a pod")

    events = run.loop(executor)

    assert events == {task_key(run.launch_of(bad)): ("failed", "pod_override is not a pod")}
    assert [(one.task_id, one.event, one.extra) for one in executor._task_event_logs] == [
        ("bad", "launch rejected", "pod_override is not a pod")
    ]
    assert run.launch_of(bad).state is LaunchState.DROPPED
    assert run.launch_of(good).state is LaunchState.SUBMITTED
    assert executor.slots_occupied == 1


def test_an_artefact_that_ends_before_its_claim_fails_the_task_until_airflow_has_heard():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    executor.celery.end(Observation(token, ok=False, reason="killed"))

    first = run.loop(executor)
    second = run.loop(executor)
    assert [(state, info) for state, info in first.values()] == [("failed", "killed")]
    assert first == second, "a report is repeated until the task is seen to have left QUEUED (rule 14)"
    assert run.launch_of(token).settled_at is None

    run.set_task(token, state="failed")
    assert run.loop(executor) == {}
    run.loop(executor)
    assert run.launch_of(token).settled_at is not None


def test_an_ending_that_is_not_proven_waits_for_the_heartbeat():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    run.claim(token)
    executor.celery.end(Observation(token, ok=False, reason="another delivery failed"))

    assert run.loop(executor) == {}
    assert run.launch_of(token).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1, "the claimant still runs"


def test_the_claimants_own_failure_is_reported():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    run.claim(token, "nonce:mine")
    executor.celery.end(Observation(token, ok=False, reason="out of memory", claimant="nonce:mine"))

    assert list(run.loop(executor).values()) == [("failed", "out of memory")]
    assert run.launch_of(token).state is LaunchState.FAILED


def test_a_workload_whose_transaction_was_rolled_back_is_never_sent():
    from airflow.utils.session import create_session

    executor = run.started_executor()
    with create_session(scoped=False) as session:
        from tests.support import rows

        ti = rows.make_task_instance(session, queued_by_job_id=executor.job_id)
        session.commit()
        token = run.enqueue(executor, session, ti)
        session.rollback()

    run.loop(executor)
    assert executor.celery.sends == []
    assert executor.slots_occupied == 0
    assert token not in [flight.token for flight in executor.dispatcher.in_flight()]


def test_a_launch_whose_task_was_marked_by_a_user_is_dropped():
    executor = run.started_executor()
    token = run.queue_task(executor)
    run.set_task(token, state="success")

    assert run.loop(executor) == {}
    assert executor.celery.sends == []
    assert run.launch_of(token).state is LaunchState.DROPPED
    assert executor.slots_occupied == 0


def test_a_newer_launch_supersedes_the_older_and_one_slot_is_held():
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    executor = run.started_executor()
    old = run.queue_task(executor)
    run.loop(executor)
    run.claim(old)
    run.set_task(old, state="deferred")
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == old))
        ti.state = "queued"
        ti.external_executor_id = new = "11111111-1111-4111-8111-111111111111"
        session.flush()
        run.enqueue(executor, session, ti)

    run.loop(executor)
    assert run.launch_of(old).state is LaunchState.SUPERSEDED
    assert run.launch_of(new).state is LaunchState.SUBMITTED
    assert executor.slots_occupied == 1

    executor.celery.end(Observation(old, ok=True, claimant="nonce:one"))
    assert run.loop(executor) == {}, "the end of the deferred launch is not the end of the new one"
    assert executor.slots_occupied == 1


def test_only_the_log_of_a_pod_is_read_through_the_executor():
    from types import SimpleNamespace

    from dispatcher.executor import HybridExecutor

    executor = run.started_executor()
    token = run.queue_task(executor)
    run.loop(executor)
    reader = HybridExecutor()

    assert reader.get_task_log(SimpleNamespace(external_executor_id=token), 1) == ([], [])
    assert reader.get_task_log(SimpleNamespace(external_executor_id=None), 1) == ([], [])
    assert reader.get_task_log(SimpleNamespace(external_executor_id="of another executor"), 1) == ([], [])


def test_what_a_heartbeat_had_no_time_for_goes_out_in_the_next_without_a_warning(caplog):
    executor = run.started_executor()
    token = run.queue_task(executor)
    executor.celery.answers[token] = Postponed("no time left in this heartbeat", tried=False)
    caplog.clear()
    run.loop(executor)
    assert executor.celery.sends == [token]
    assert [record for record in caplog.records if record.name.startswith("dispatcher.dispatch")] == []

    del executor.celery.answers[token]
    run.loop(executor)
    assert executor.celery.sends == [token, token]


def test_what_a_backend_did_not_come_to_is_sent_in_the_next_heartbeat_without_a_warning(caplog):
    executor = run.started_executor()
    tokens = [run.queue_task(executor, map_index=number) for number in range(3)]
    submit = executor.celery.submit
    executor.celery.submit = lambda batch: submit([next(iter(batch))])
    run.loop(executor)
    assert executor.celery.sends == tokens[:1]

    executor.celery.submit = submit
    run.loop(executor)

    assert sorted(executor.celery.sends) == sorted(tokens)
    assert not [record for record in caplog.records if "waits" in record.message]
