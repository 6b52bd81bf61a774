# SPDX-License-Identifier: Apache-2.0
"""Known fault 114: callbacks are not counted, run without limit, and are adopted when they are done."""

from __future__ import annotations

from uuid import UUID

import pytest
from airflow.models.callback import Callback, CallbackKey
from airflow.utils.session import create_session
from sqlalchemy import update

from dispatcher.backends.base import Observation
from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.ledger import claims, store
from tests.support import dispatching as run
from tests.support import rows
from tests.support.service_dispatching import die

pytestmark = pytest.mark.usefixtures("airflow_db")

LIMIT = 2


def finish(executor, token: str) -> None:
    """Let a worker claim a launch, and end it well."""
    launch = run.launch_of(token)
    if launch.kind is LaunchKind.TASK:
        assert run.claim(token)
        run.set_task(token, state="success")
    else:
        with create_session(scoped=False) as session:
            assert claims.claim_callback(
                session.connection(), token, launch.subject_id, "nonce:one", hostname="w", now=rows.utcnow()
            )
            session.execute(update(Callback).where(Callback.state == "queued").values(state="running"))
    executor.celery.end(Observation(token, ok=True, claimant="nonce:one"))


def heed(events) -> None:
    """Do as the scheduler does with the ends of callbacks."""
    with create_session(scoped=False) as session:
        for key, (state, _) in events.items():
            if isinstance(key, CallbackKey):
                session.execute(update(Callback).where(Callback.id == UUID(key.id)).values(state=state))


def test_fault_114_ten_callbacks_and_two_tasks_share_two_slots():
    executor = run.started_executor()
    executor.parallelism = LIMIT
    for n in range(2):
        run.queue_task(executor, task_id=f"task-{n}")
    for _ in range(10):
        with create_session(scoped=False) as session:
            callback_id = rows.make_callback(session).id
        run.queue_callback(executor, callback_id)
    finished: list[str] = []
    kinds: list[LaunchKind] = []
    for _ in range(40):
        heed(run.loop(executor))
        under_way = [token for token in executor.celery.sends if token not in finished]
        assert len(under_way) <= LIMIT
        assert len(executor.running) <= LIMIT
        for token in under_way:
            kinds.append(run.launch_of(token).kind)
            finish(executor, token)
            finished.append(token)
    assert kinds == [LaunchKind.CALLBACK] * 10 + [LaunchKind.TASK] * 2, "callbacks first, each once"
    assert executor.slots_occupied == 0

    # What is finished is nobody's to adopt.
    die(executor)
    heir = run.started_executor()
    for _ in range(3):
        heir.dispatcher.adopt_soon()
        assert run.loop(heir) == {}
    assert heir.slots_occupied == 0
    with create_session(scoped=False) as session:
        launches = store.recent(session.connection(), limit=100)
    assert {one.scheduler_job_id for one in launches} == {str(executor.job_id)}
