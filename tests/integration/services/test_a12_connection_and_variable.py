# SPDX-License-Identifier: Apache-2.0
"""A12: a callback uses a Connection and a Variable. Today 403 on 3.3.

Right: works, by the execution token that the claim returns, at a real API server.
"""

from __future__ import annotations

import pytest
from airflow.models.connection import Connection
from airflow.models.variable import Variable
from airflow.utils.session import create_session
from sqlalchemy import delete

from dispatcher.domain.lifecycle import LaunchState
from tests.support import guarded_callbacks
from tests.support import service_dispatching as run
from tests.support.dispatching import loop, queue_callback

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(400)]

CALLBACK = f"{guarded_callbacks.__name__}.read_connection_and_variable"


@pytest.fixture
def secrets(airflow_db):
    with create_session(scoped=False) as session:
        session.add(Connection(conn_id="guarded", conn_type="http", host="pager.example"))
        session.add(Variable(key="guarded", val="night shift"))
    yield
    with create_session(scoped=False) as session:
        session.execute(delete(Connection).where(Connection.conn_id == "guarded"))
        session.execute(delete(Variable).where(Variable.key == "guarded"))


def test_it_reads_both(secrets, executor, airflow_home, worker):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    queue_callback(executor, callback_id)
    loop(executor)
    (launch,) = run.launches_of(callback_id)
    run.drive_to_the_end(executor, launch.token)

    row = run.callback_row(callback_id)
    assert (row.state, row.output) == ("success", None)
    assert worker.take_marks() == ["pager.example night shift"]
    assert run.launches_of(callback_id)[0].state is LaunchState.SUCCEEDED
