# SPDX-License-Identifier: Apache-2.0
"""B9: a branching task skips its siblings under the fence. They are skipped, whatever tokens they carry."""

from __future__ import annotations

import pytest

from tests.support.fence_calls import guarded, queued_launch, stock, task_instance
from tests.support.launches import add_launch_of
from tests.support.rows import make_task_instance


@pytest.mark.parametrize("kind", [guarded, stock])
def test_siblings_are_skipped(db_session, execution_client, kind):
    branch = queued_launch(db_session, task_id="branch")
    waiting = make_task_instance(db_session, task_id="waiting", state=None, token=None)
    queued = make_task_instance(db_session, task_id="queued", state="queued")
    add_launch_of(db_session, queued)
    running = make_task_instance(db_session, task_id="running", state="running")
    db_session.commit()
    worker = kind(execution_client, branch)
    assert worker.run().status_code == 200

    answer = worker.skip_downstream("waiting", "queued", "running")

    assert answer.status_code == 204, answer.text
    states = {one.task_id: task_instance(db_session, one.id).state for one in (waiting, queued, running)}
    assert states == {"waiting": "skipped", "queued": "skipped", "running": "running"}
    assert worker.report().status_code == 204
