# SPDX-License-Identifier: Apache-2.0
"""More ends at once than one statement can ask for: they are dealt with all the same."""

from __future__ import annotations

from uuid import UUID

import pytest
from airflow.utils.session import create_session

from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.ledger import store, subjects
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")

MANY = 1100


def ended(number: int, executor, kind: LaunchKind) -> Launch:
    return Launch(
        sequence=0,
        token=str(UUID(int=number)),
        kind=kind,
        subject_id=str(UUID(int=number)),
        state=LaunchState.FAILED,
        backend=BackendName.CELERY,
        queue="default",
        dag_id="dag",
        run_id=f"run {number}",
        task_id=f"task {number % 7}",
        try_number=1,
        scheduler_job_id=str(executor.job_id),
        issued_at=rows.utcnow(),
        ended_at=rows.utcnow(),
    )


@pytest.mark.parametrize("kind", list(LaunchKind))
def test_ends_in_many_runs_are_settled(kind):
    executor = run.started_executor()
    with create_session(scoped=False) as session:
        for number in range(MANY):
            store.issue(session, ended(number, executor, kind))

    run.loop(executor)
    run.loop(executor)

    with create_session(scoped=False) as session:
        assert store.unsettled_of_owner(session.connection(), str(executor.job_id)) == []


def test_each_subject_is_found_across_chunks(monkeypatch):
    monkeypatch.setattr(subjects, "CHUNK", 2)
    executor = run.started_executor()
    tokens = [run.queue_task(executor, task_id=f"t{one % 2}", run_id=f"r{one}") for one in range(5)]
    with create_session(scoped=False) as session:
        launches = store.by_tokens(session.connection(), tokens)
        found = subjects.subjects_of(session.connection(), list(launches.values()))

    assert {token: subject.token for token, subject in found.items()} == {token: token for token in tokens}
