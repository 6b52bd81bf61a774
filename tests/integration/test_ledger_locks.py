# SPDX-License-Identifier: Apache-2.0
"""A locked subject stays as it was read until the transaction ends, also where there are no row locks."""

from __future__ import annotations

import pytest
from airflow import settings
from sqlalchemy import text, update
from sqlalchemy.exc import OperationalError

from dispatcher.ledger.subjects import lock_callback, lock_task_instance
from tests.support.rows import make_callback, make_task_instance

IMPATIENCE = {"sqlite": "PRAGMA busy_timeout = 100", "postgres": "SET LOCAL lock_timeout = '100ms'"}


@pytest.fixture
def impatient(airflow_db, airflow_database):
    """Yield another connection, which waits for locks a tenth of a second."""
    with settings.get_engine().connect() as connection:
        connection.execute(text(IMPATIENCE[airflow_database]))
        yield connection
        connection.rollback()
        connection.invalidate()


@pytest.mark.parametrize(
    ("make", "lock"), [(make_task_instance, lock_task_instance), (make_callback, lock_callback)]
)
def test_a_locked_subject_cannot_change(db_session, impatient, make, lock):
    row = make(db_session, state="queued")
    db_session.commit()
    model, row_id = type(row).__mapper__.primary_base_mapper.class_, row.id
    assert lock(db_session.connection(), row_id).state == "queued"

    change = update(model).where(model.id == row_id).values(state="failed")
    with pytest.raises(OperationalError):
        impatient.execute(change)

    db_session.rollback()
    impatient.rollback()
    assert impatient.execute(change).rowcount == 1


@pytest.mark.parametrize("lock", [lock_task_instance, lock_callback])
def test_a_subject_that_is_not_there(db_session, lock):
    from uuid import uuid4

    assert lock(db_session.connection(), uuid4()) is None
