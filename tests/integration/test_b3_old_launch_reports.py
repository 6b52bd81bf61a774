# SPDX-License-Identifier: Apache-2.0
"""B3: a worker of an old launch calls while a newer launch of the same UUID runs. It gets 409 and stops.

The old process has the host name and process id of the new one, as it happens in containers: Airflow alone
cannot tell them apart and accepts. Known fault 116 is the same hole seen from the executor.
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support.fence_calls import (
    LATER_CALLS,
    assert_refused,
    guarded,
    launch_row,
    queued_launch,
    requeue,
    stock,
    task_instance,
)

DEFERRED = {"classpath": "trigger", "next_method": "resume"}


def snapshot(session, instance_id):
    row = task_instance(session, instance_id)
    return row.state, row.last_heartbeat_at, row.rendered_map_index, row.external_executor_id


@pytest.fixture(params=[guarded, stock], ids=["guarded", "stock"])
def old_and_new(request, db_session, execution_client):
    """Return the worker of a launch that deferred, and the one that now runs the next launch."""
    first = queued_launch(db_session)
    old = request.param(execution_client, first)
    assert old.run().status_code == 200
    deferral = old.call("PATCH", "state", "execution", {"state": "deferred", **DEFERRED})
    assert deferral.status_code == 204, deferral.text

    second = requeue(db_session, first.subject_id)
    new = request.param(execution_client, second)
    assert new.run().status_code == 200
    return old, new


@pytest.mark.parametrize("call", LATER_CALLS)
def test_the_old_worker_is_refused(db_session, old_and_new, call):
    old, new = old_and_new
    before = snapshot(db_session, old.subject_id)

    assert_refused(getattr(old, call)(), "launch_superseded")

    assert snapshot(db_session, old.subject_id) == before
    assert launch_row(db_session, new.claim).state is LaunchState.CLAIMED


@pytest.mark.parametrize("call", LATER_CALLS)
def test_the_new_worker_is_not(old_and_new, call):
    _, new = old_and_new

    answer = getattr(new, call)()

    assert answer.is_success, answer.text


def test_the_old_worker_cannot_claim_again(old_and_new):
    old, _ = old_and_new

    assert_refused(old.run(), "launch_superseded")


def test_another_claimant_of_the_current_token_is_refused(old_and_new):
    """The same launch, delivered a second time: the loser may not speak for the task either."""
    _, new = old_and_new
    other = new.but(header=new.claim, claimant="another")

    if new.claimant is None:
        pytest.skip("a stock claimant has no nonce to differ from")
    assert_refused(other.report("failed"), "launch_consumed")
    assert_refused(other.heartbeat(), "launch_consumed")


def test_a_revoked_launch_is_told_so(db_session, execution_client):
    from dispatcher.domain.lifecycle import LaunchEvent
    from dispatcher.ledger import store
    from tests.support.rows import utcnow

    launch = queued_launch(db_session)
    worker = guarded(execution_client, launch)
    assert worker.run().status_code == 200
    store.record(db_session.connection(), LaunchEvent.OPERATOR_REVOKE, (launch.token,), now=utcnow())
    db_session.commit()

    for call in ("heartbeat", "report", "run"):
        assert_refused(getattr(worker, call)(), "launch_revoked")
