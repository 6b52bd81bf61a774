# SPDX-License-Identifier: Apache-2.0
"""The life of a launch: its states, the one transitions table, and what follows from each step.

``TRANSITIONS`` is the only place that says which state may follow which. The ledger derives the ``WHERE``
clause of every compare-and-set from it (``sources``), and the protocol model is tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class LaunchKind(StrEnum):
    """What a launch starts. Connection tests have no launch."""

    TASK = "task"
    CALLBACK = "callback"


class BackendName(StrEnum):
    """Where a launch is sent."""

    CELERY = "celery"
    KUBERNETES = "kubernetes"


class LaunchState(StrEnum):
    """Where a launch is in its life; see ``docs/life-cycle.md``."""

    ISSUED = "issued"
    SUBMITTED = "submitted"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    REVOKED = "revoked"
    DROPPED = "dropped"
    LOST = "lost"


class LaunchEvent(StrEnum):
    """What can happen to a launch. Each event leads to exactly one state."""

    SUBMIT = "submit"
    """The executor is about to send it (write-ahead)."""
    CLAIM = "claim"
    """A worker won the right to run."""
    END_OK = "end_ok"
    """The artefact of a claimed launch ended well."""
    END_FAILED = "end_failed"
    """The artefact ended otherwise, with or without a claim."""
    SUPERSEDE = "supersede"
    """A newer launch of the same subject exists."""
    REVOKE = "revoke"
    """The scheduler told it to stop before it was claimed."""
    OPERATOR_REVOKE = "operator_revoke"
    """A person told it to stop, or deleted what it is about, claimed or not."""
    EXPIRE = "expire"
    """No worker claimed it in time. Callbacks only: of tasks Airflow itself takes care."""
    DROP = "drop"
    """Never sent, or proven useless before a claim."""
    LOSE = "lose"
    """Positive evidence that the backend has no trace of it."""


class Instruction(StrEnum):
    """What the executor has to do once a step is durable."""

    SEND = "send"
    FREE_SLOT = "free_slot"
    REPORT = "report"
    REMOVE_ARTEFACT = "remove_artefact"


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one event: the new state and what is to be done about it.

    :param state: the state after the event
    :param instructions: what the executor does next, in this order
    """

    state: LaunchState
    instructions: tuple[Instruction, ...]


class TransitionError(ValueError):
    """An event arrived in a state in which the transitions table does not allow it."""


_S = LaunchState
_E = LaunchEvent

UNCLAIMED: frozenset[LaunchState] = frozenset({_S.ISSUED, _S.SUBMITTED})
"""A launch that no worker has won yet."""

OPEN: frozenset[LaunchState] = UNCLAIMED | {_S.CLAIMED}
"""A launch that may still run or is running."""

ENDED: frozenset[LaunchState] = frozenset(_S) - OPEN
"""Nothing follows."""

TRANSITIONS: Mapping[LaunchEvent, tuple[frozenset[LaunchState], LaunchState]] = {
    _E.SUBMIT: (UNCLAIMED, _S.SUBMITTED),
    _E.CLAIM: (UNCLAIMED, _S.CLAIMED),
    _E.END_OK: (frozenset({_S.CLAIMED}), _S.SUCCEEDED),
    _E.END_FAILED: (frozenset({_S.SUBMITTED, _S.CLAIMED}), _S.FAILED),
    _E.SUPERSEDE: (OPEN, _S.SUPERSEDED),
    _E.REVOKE: (UNCLAIMED, _S.REVOKED),
    _E.OPERATOR_REVOKE: (OPEN, _S.REVOKED),
    _E.EXPIRE: (UNCLAIMED, _S.REVOKED),
    _E.DROP: (UNCLAIMED, _S.DROPPED),
    _E.LOSE: (OPEN, _S.LOST),
}
"""Event -> (the states in which it is allowed, the state it leads to)."""

_INSTRUCTIONS: Mapping[LaunchEvent, tuple[Instruction, ...]] = {
    _E.SUBMIT: (Instruction.SEND,),
    _E.CLAIM: (),
    _E.END_OK: (Instruction.FREE_SLOT, Instruction.REPORT, Instruction.REMOVE_ARTEFACT),
    _E.END_FAILED: (Instruction.FREE_SLOT, Instruction.REPORT, Instruction.REMOVE_ARTEFACT),
    _E.SUPERSEDE: (Instruction.FREE_SLOT, Instruction.REMOVE_ARTEFACT),
    _E.REVOKE: (Instruction.FREE_SLOT, Instruction.REMOVE_ARTEFACT),
    _E.OPERATOR_REVOKE: (Instruction.FREE_SLOT, Instruction.REPORT, Instruction.REMOVE_ARTEFACT),
    _E.EXPIRE: (Instruction.FREE_SLOT, Instruction.REPORT, Instruction.REMOVE_ARTEFACT),
    _E.DROP: (Instruction.FREE_SLOT, Instruction.REMOVE_ARTEFACT),
    _E.LOSE: (Instruction.FREE_SLOT, Instruction.REPORT),
}


def sources(event: LaunchEvent, kind: LaunchKind = LaunchKind.TASK) -> frozenset[LaunchState]:
    """Return the states in which ``event`` is allowed.

    :param event: what happens
    :param kind: a claimed callback launch is never superseded (rule 3): it has no newer truth to yield to
    """
    allowed, _ = TRANSITIONS[event]
    if event is _E.SUPERSEDE and kind is LaunchKind.CALLBACK:
        return allowed - {_S.CLAIMED}
    return allowed


def target(event: LaunchEvent) -> LaunchState:
    """Return the state that ``event`` leads to."""
    return TRANSITIONS[event][1]


def advance(state: LaunchState, event: LaunchEvent, kind: LaunchKind = LaunchKind.TASK) -> Step:
    """Apply ``event`` to a launch in ``state``.

    :param state: the state before
    :param event: what happens
    :param kind: what the launch starts
    :raises TransitionError: the table does not allow ``event`` in ``state``
    """
    if state not in sources(event, kind):
        raise TransitionError(f"a {kind.value} launch in state {state.value} cannot {event.value}")
    return Step(target(event), _INSTRUCTIONS[event])
