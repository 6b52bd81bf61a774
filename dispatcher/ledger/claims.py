# SPDX-License-Identifier: Apache-2.0
"""Claims: the compare-and-sets by which one claimant wins a launch (rules 7 and 19).

They run in the API server, inside the transaction of the call, which holds the subject's row lock.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Connection, exists
from sqlalchemy.orm import aliased

from dispatcher.compat import of_the_present
from dispatcher.domain.lifecycle import LaunchEvent, LaunchKind
from dispatcher.ledger.models import LaunchRow
from dispatcher.ledger.store import record


def claim_task(
    connection: Connection, token: str, subject_id: str, claimant: str, *, hostname: str | None, now: datetime
) -> bool:
    """Claim the launch of a task for one claimant (rule 7).

    :param connection: the transaction of ``/run``, which holds the task instance's row lock
    :param token: the presented token
    :param subject_id: the UUID of the request's path
    :param claimant: who asks
    :param hostname: where the claimant runs
    :param now: when
    :returns: whether this claimant has it
    """
    hit = record(
        connection,
        LaunchEvent.CLAIM,
        (token,),
        now=now,
        where=(
            LaunchRow.subject_id == subject_id,
            exists().where(
                TaskInstance.id == UUID(subject_id),
                TaskInstance.external_executor_id == LaunchRow.token,
                TaskInstance.state == "queued",
                of_the_present(),
            ),
        ),
        values={"claimant": claimant, "hostname": hostname},
    )
    return bool(hit)


def claim_callback(
    connection: Connection, token: str, subject_id: str, claimant: str, *, hostname: str | None, now: datetime
) -> bool:
    """Claim the launch of a callback for one claimant, if no launch of it was ever claimed (rule 19).

    :param connection: a transaction that holds the callback's row lock
    :param token: the presented token
    :param subject_id: the callback's UUID
    :param claimant: who asks
    :param hostname: where the claimant runs
    :param now: when
    :returns: whether this claimant has it
    """
    claimed = aliased(LaunchRow)
    hit = record(
        connection,
        LaunchEvent.CLAIM,
        (token,),
        now=now,
        kind=LaunchKind.CALLBACK,
        where=(
            LaunchRow.subject_id == subject_id,
            # In the statement itself: without row locks, two launches of it could be claimed at once.
            ~exists().where(
                claimed.subject_id == subject_id,
                claimed.kind == LaunchKind.CALLBACK.value,
                claimed.claimant.is_not(None),
            ),
        ),
        values={"claimant": claimant, "hostname": hostname},
    )
    return bool(hit)
