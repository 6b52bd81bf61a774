# SPDX-License-Identifier: Apache-2.0
"""The pool of a task is read when it is queued, but only where a routing rule asks for it (rule 1)."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from airflow import settings
from airflow.utils.session import create_session
from sqlalchemy import event

from dispatcher.domain.lifecycle import BackendName
from tests.support import dispatching as run
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")

RULES = '[{"match": {"pool": "heavy*"}, "backend": "kubernetes"}]'


@contextmanager
def statements():
    sent = []

    def note(_connection, _cursor, statement, *_):
        sent.append(statement)

    event.listen(settings.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(settings.engine, "before_cursor_execute", note)


def queue(executor, **columns) -> tuple[str, list[str]]:
    with create_session(scoped=False) as session:
        ti = rows.make_task_instance(session, queued_by_job_id=executor.job_id, **columns)
        session.flush()
        workload = run.ExecuteTask.make(ti)
        with statements() as sent:
            executor.queue_workload(workload, session)
    return ti.external_executor_id, sent


@pytest.mark.parametrize(
    ("pool", "backend"), [("heavy_jobs", BackendName.KUBERNETES), ("default_pool", BackendName.CELERY)]
)
def test_a_rule_on_the_pool(monkeypatch, pool, backend):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__ROUTES", RULES)
    executor = run.started_executor()

    token, sent = queue(executor, pool=pool)

    assert run.launch_of(token).backend is backend
    assert len(sent) == 1


def test_without_such_a_rule_nothing_is_sent_while_a_task_is_queued():
    executor = run.started_executor()

    _, sent = queue(executor, pool="heavy_jobs")

    assert sent == []
