# SPDX-License-Identifier: Apache-2.0
"""B8: a send times out, a worker claims, the retry of the send comes round. The claim stands."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Postponed
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


def test_the_claim_stands_and_nothing_is_sent_or_dropped():
    executor = run.started_executor()
    token = run.queue_task(executor)
    executor.celery.answers[token] = Postponed("timed out", retry_after=0.0, ambiguous=True)
    run.loop(executor)
    assert run.claim(token)

    run.loop(executor)

    assert run.launch_of(token).state is LaunchState.CLAIMED
    assert executor.celery.sends == [token]
    assert executor.get_event_buffer() == {}
    assert executor.slots_occupied == 1, "the task runs: its slot is taken"
