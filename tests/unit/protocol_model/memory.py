# SPDX-License-Identifier: Apache-2.0
"""What a scheduler process keeps in memory of the ends of launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dispatcher.domain.launch import Launch
    from dispatcher.domain.protocol import Ending
    from tests.unit.protocol_model.rows import Key


class Told(NamedTuple):
    """What the scheduler itself says of a task."""

    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """The end of one launch that Airflow may have to hear of.

    :param told: the scheduler itself said so, having found no heartbeat
    """

    launch: Launch
    key: Key
    ending: Ending
    told: bool = False


@dataclass(frozen=True, slots=True)
class Emission:
    """One event, and what the oracle wants to know of it.

    :param launch: None for an event that the scheduler passes to itself
    :param heartbeat_stale: the task's heartbeat stood still when the event was decided
    """

    state: str
    launch: Launch | None = None
    heartbeat_stale: bool = False

    @property
    def token(self) -> str | None:
        """The token of its launch."""
        return None if self.launch is None else self.launch.token
