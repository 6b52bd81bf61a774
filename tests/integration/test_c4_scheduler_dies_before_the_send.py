# SPDX-License-Identifier: Apache-2.0
"""C4: the scheduler dies after the QUEUED commit and before the send, over a real broker.

Right: sent by the next scheduler within one orphan check, under the same token.
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import service_dispatching as run
from tests.support.celery_backend import messages
from tests.support.dispatching import claim, launch_of, queue_task

pytestmark = [pytest.mark.needs("redis"), pytest.mark.usefixtures("airflow_db", "redis_executors")]


def test_c4_the_next_scheduler_sends_it(redis_url):
    with run.started_executor() as dead, run.started_executor() as live:
        token = queue_task(dead, queue=run.PARKED)
        run.die(dead)

        assert run.orphan_check(live) == 0, "nothing is reset"
        run.drive(live, lambda: messages(redis_url, run.PARKED), "it is sent")

        assert [message["headers"]["id"] for message in messages(redis_url, run.PARKED)] == [token]
        launch = launch_of(token)
        assert (launch.state, launch.scheduler_job_id) == (LaunchState.SUBMITTED, str(live.job_id))
        assert live.slots_occupied == 1
        assert claim(token)
