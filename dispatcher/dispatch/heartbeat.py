# SPDX-License-Identifier: Apache-2.0
"""What one step of the dispatcher means for Airflow's slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Heartbeat:
    """What the executor has to do to Airflow's slots after a step.

    :param running: keys that are in a backend now
    :param queued: workloads that are to be sent, by key
    :param freed: keys that occupy no slot any more
    :param notes: for the event log of the tasks: the key, what happened, and why
    """

    running: set[Any] = field(default_factory=set)
    queued: dict[Any, Any] = field(default_factory=dict)
    freed: set[Any] = field(default_factory=set)
    notes: list[tuple[Any, str, str]] = field(default_factory=list)

    def note(self, key: Any, event: str, text: str | None) -> None:
        """Take down what the event log of a task is to tell; callbacks have none.

        :param key: Airflow's key
        :param event: what happened, in two words
        :param text: why, as far as it is known
        """
        self.notes.append((key, event, text or "the reason is not known"))
