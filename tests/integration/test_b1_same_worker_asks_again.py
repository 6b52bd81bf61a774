# SPDX-License-Identifier: Apache-2.0
"""B1: the response to /run is lost, and the same worker asks again. It is accepted (rule 8)."""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support.fence_calls import guarded, launch_row, queued_launch, stock, task_instance


@pytest.mark.parametrize("kind", [guarded, stock])
def test_the_claimant_is_accepted_again(db_session, execution_client, kind):
    launch = queued_launch(db_session)
    worker = kind(execution_client, launch)

    first, second = worker.run(), worker.run()

    assert (first.status_code, second.status_code) == (200, 200), (first.text, second.text)
    assert task_instance(db_session, launch.subject_id).state == "running"
    row = launch_row(db_session, launch.token)
    assert row.state is LaunchState.CLAIMED
    assert row.hostname == worker.hostname


def test_a_repeat_does_not_move_the_claim(db_session, execution_client):
    launch = queued_launch(db_session)
    worker = guarded(execution_client, launch)
    worker.run()
    before = launch_row(db_session, launch.token)

    worker.run()

    assert launch_row(db_session, launch.token) == before
