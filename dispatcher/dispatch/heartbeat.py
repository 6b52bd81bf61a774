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
    :param rejected: why a workload will never be sent, by key; for the event log of the task
    """

    running: set[Any] = field(default_factory=set)
    queued: dict[Any, Any] = field(default_factory=dict)
    freed: set[Any] = field(default_factory=set)
    rejected: dict[Any, str] = field(default_factory=dict)
