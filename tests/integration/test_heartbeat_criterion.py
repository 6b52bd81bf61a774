# SPDX-License-Identifier: Apache-2.0
"""The heartbeat's one-statement UPDATE hits where the judgement under a lock would permit the call."""

from __future__ import annotations

from itertools import product
from uuid import UUID, uuid4

import pytest
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select, update

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.domain.protocol import Refusal
from dispatcher.fence.judgement import heartbeat_criterion, judge
from dispatcher.fence.request import Call, FencedRequest, Presentation
from dispatcher.ledger.models import LaunchRow
from tests.support.fence_calls import queued_launch

CLAIMANTS = [None, "nonce:mine", "nonce:other", "process:host|user|1"]
STATES = [state.value for state in LaunchState]


def hits(session, request):
    statement = select(TaskInstance.id).where(
        TaskInstance.id == request.subject_id, heartbeat_criterion(request)
    )
    return session.connection().execute(statement).one_or_none() is not None


def permits(session, request):
    return not isinstance(judge(session.connection(), request), Refusal)


def heartbeat(launch, presented, required=False):
    return FencedRequest(Call.HEARTBEAT, UUID(launch.subject_id), presented, required)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("presents", ["header and nonce", "JWT alone", "another token", "nothing"])
def test_it_agrees_with_the_judgement(db_session, presents, required):
    if presents == "nothing" and not required:
        pytest.skip("without a token the fence judges under `required` only")
    launch = queued_launch(db_session, state="running")
    presented = {
        "header and nonce": Presentation(launch.token, by_header=True, nonce="mine"),
        "JWT alone": Presentation(launch.token, by_header=False, nonce=None),
        "another token": Presentation(str(uuid4()), by_header=True, nonce="mine"),
        "nothing": Presentation(None, by_header=False, nonce=None),
    }[presents]
    request = heartbeat(launch, presented, required)

    verdicts = set()
    for state, claimant in product(STATES, CLAIMANTS):
        db_session.execute(
            update(LaunchRow).where(LaunchRow.token == launch.token).values(state=state, claimant=claimant)
        )
        permitted = permits(db_session, request)
        verdicts.add(permitted)
        assert hits(db_session, request) == permitted, (state, claimant)
    assert verdicts == ({False} if presents == "another token" else {True, False})


def test_it_agrees_where_the_task_has_no_token(db_session):
    launch = queued_launch(db_session, state="running")
    db_session.execute(update(TaskInstance).values(external_executor_id=None))

    request = heartbeat(launch, Presentation(launch.token, by_header=True, nonce="mine"))
    assert (hits(db_session, request), permits(db_session, request)) == (False, False)
    request = heartbeat(launch, Presentation(None, by_header=False, nonce=None), required=True)
    assert (hits(db_session, request), permits(db_session, request)) == (True, True)
