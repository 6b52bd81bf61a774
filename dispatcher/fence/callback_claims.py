# SPDX-License-Identifier: Apache-2.0
"""Claims of callbacks, at whichever endpoint they are made (rule 19).

Airflow 3.3 has no claim for callbacks, so there is an endpoint of our own; Airflow 3.4 has one, which is
fenced. All SQL goes through the connection, see ``judgement``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.domain.protocol import Permit, Refusal, judge_callback_claim, judge_untokened
from dispatcher.fence.answers import busy
from dispatcher.ledger import claims, store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from dispatcher.domain.launch import Subject


def claim(
    connection: Connection, subject: Subject, token: str, claimant: str, *, hostname: str | None
) -> Permit | Refusal:
    """Judge the claim of a callback and, if it may be claimed, claim it.

    :param connection: a transaction that holds the callback's row lock
    :param subject: the callback, as locked
    :param token: the presented launch token
    :param claimant: who asks
    :param hostname: where the claimant runs, as far as it is known
    :returns: CLAIM if it was claimed now, REPEAT if this claimant has it already
    :raises fastapi.HTTPException: 503 if the launch changed meanwhile
    """
    launch = store.by_token(connection, token, lock=True)
    elsewhere = store.callback_claimed_elsewhere(connection, (subject.id,)).get(subject.id, set())
    verdict = judge_callback_claim(launch, subject, claimant, claimed_elsewhere=bool(elsewhere - {token}))
    if verdict is Permit.CLAIM and not claims.claim_callback(
        connection, token, subject.id, claimant, hostname=hostname, now=datetime.now(tz=UTC)
    ):
        raise busy()
    return verdict


def judge_without_token(connection: Connection, subject: Subject, *, required: bool) -> Permit | Refusal:
    """Judge the start of a callback without a launch token (rule 11).

    :param connection: the caller's transaction
    :param subject: the callback, as locked
    :param required: ``[dispatcher] fence`` is ``required``
    """
    launches = store.launches_of(connection, LaunchKind.CALLBACK, (subject.id,)).get(subject.id, [])
    return judge_untokened(launches[-1] if launches else None, is_run=True, required=required)
