# SPDX-License-Identifier: Apache-2.0
"""What the handover gives back to Airflow of callbacks, where a scheduler that was taken for dead goes on."""

from __future__ import annotations

import pytest
from airflow.utils.session import create_session

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger.handover import give_back_callback
from tests.support import callback_dispatching as callbacks
from tests.support import dispatching as run
from tests.support import rows
from tests.support.service_dispatching import launches_of

pytestmark = pytest.mark.usefixtures("airflow_db")


@pytest.mark.parametrize("sent", [False, True])
def test_one_that_was_sent_since_it_was_looked_at_stays_queued(sent):
    """PENDING again, it would be run by a stock executor too."""
    executor = run.started_executor()
    callback_id = callbacks.new_callback()
    run.queue_callback(executor, callback_id)
    (launch,) = launches_of(str(callback_id))
    if sent:
        run.loop(executor)
    with create_session(scoped=False) as session:
        given_back = give_back_callback(session.connection(), launch, now=rows.utcnow(), reason="over")
    assert given_back is not sent
    assert callbacks.state(callback_id) == ("queued" if sent else "pending")
    state = run.launch_of(launch.token).state
    assert state is (LaunchState.SUBMITTED if sent else LaunchState.DROPPED)
