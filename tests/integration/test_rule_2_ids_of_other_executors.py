# SPDX-License-Identifier: Apache-2.0
"""Rule 2: what another executor left in ``external_executor_id`` never becomes a launch token.

A task that names our executor by its class gets no fresh id from Airflow in a mixed list, and the stock
Kubernetes executor leaves its job's number in every task instance that it queued.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.dispatch.issue import Issuer
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.routing import Router
from dispatcher.ledger.models import LaunchRow
from tests.support import rows

pytestmark = pytest.mark.usefixtures("airflow_db")


@pytest.fixture
def issuer():
    router = Router(
        kubernetes_queue="kubernetes",
        callback_backend=BackendName.CELERY,
        callback_queue="callbacks",
        default_queue="default",
    )
    return Issuer(router=router, owner="1", team=None, ids_may_be_stale=True)


def issued(issuer, session, ti) -> str:
    return issuer.issue(ExecuteTask.make(ti), session, rows.utcnow()).token


def test_the_job_number_of_the_stock_kubernetes_executor(issuer):
    with create_session(scoped=False) as session:
        instances = [rows.make_task_instance(session, task_id=name, token="5") for name in ("one", "two")]
        tokens = [issued(issuer, session, ti) for ti in instances]

    with create_session(scoped=False) as session:
        written = session.scalars(select(TaskInstance.external_executor_id)).all()
        assert sorted(session.scalars(select(LaunchRow.token))) == sorted(tokens) == sorted(written)
    assert len({UUID(token) for token in tokens}) == 2


@pytest.mark.parametrize("left", ["", "dag-task-abc123", "A" * 32, "urn:uuid:" + "0" * 32])
def test_other_text(issuer, left):
    with create_session(scoped=False) as session:
        token = issued(issuer, session, rows.make_task_instance(session, token=left))
    assert token != left
    assert str(UUID(token)) == token


def test_a_fresh_id_is_kept(issuer):
    with create_session(scoped=False) as session:
        ti = rows.make_task_instance(session)
        fresh = ti.external_executor_id
        assert issued(issuer, session, ti) == fresh


def test_a_token_of_an_earlier_launch(issuer):
    with create_session(scoped=False) as session:
        ti = rows.make_task_instance(session)
        first = issued(issuer, session, ti)
    with create_session(scoped=False) as session:
        session.add(ti)
        assert issued(issuer, session, ti) != first
