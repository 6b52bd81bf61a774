# SPDX-License-Identifier: Apache-2.0
"""The executor's memory of the launches it is busy with, keyed by token (rule 15).

Memory only saves reads: the ledger is the truth, and everything here can be built from it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from airflow.models.callback import CallbackKey

from dispatcher.backends.base import Artefact
from dispatcher.compat import task_key
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import LaunchKind
from dispatcher.domain.workload import WorkloadKind


@dataclass(slots=True)
class Flight:
    """One open launch in memory.

    :param launch: the ledger row as last read or written; of a claimed task, its times may be older
    :param key: how the scheduler knows the subject
    :param workload: what to send; None once it was sent, or when it was taken over after its claim
    :param underway: a backend is sending it: it keeps its slot, and is not sent again meanwhile
    :param attempts: sends that did not succeed so far
    :param not_before: when it may be sent again, on the dispatcher's monotonic clock (seconds)
    :param left_at: when its subject was first seen to have left RUNNING without an ending, same clock
    """

    launch: Launch
    key: Any
    workload: Any = None
    underway: bool = False
    attempts: int = 0
    not_before: float = 0.0
    left_at: float | None = None

    @property
    def token(self) -> str:
        """The launch token."""
        return self.launch.token


def artefact_of(launch: Launch) -> Artefact:
    """Return what the backend needs to find the artefact of a launch."""
    return Artefact(launch.token, WorkloadKind(launch.kind.value), launch.external_id)


class FlightTable:
    """All flights, and for each of Airflow's keys the token of its current launch."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._current: dict[Any, str] = {}
        self._passed_over: dict[Any, set[str]] = {}
        """Of callbacks with several launches (rule 19), those that once were not the current one."""

    def add(self, flight: Flight) -> None:
        """Remember a flight; it becomes the current one of its key."""
        if (known := self.current(flight.key)) is not None:
            self._pass_over(known)
        self._flights[flight.token] = flight
        self._current[flight.key] = flight.token

    def take_up(self, flight: Flight) -> bool:
        """Remember a flight that was read from the ledger.

        A newer launch of its key that is known already stays the current one.

        :returns: whether the flight is the current one of its key
        """
        known = self.current(flight.key)
        if known is None or known.launch.sequence < flight.launch.sequence:
            self.add(flight)
            return True
        self._flights[flight.token] = flight
        self._pass_over(flight)
        return False

    def _pass_over(self, flight: Flight) -> None:
        # An older launch of a task is of no use any more; one of a callback may still run it.
        if flight.launch.kind is LaunchKind.CALLBACK:
            self._passed_over.setdefault(flight.key, set()).add(flight.token)

    def next_of(self, key: Any) -> Flight | None:
        """Let another launch of a callback be the current one, after that was forgotten; return it.

        :param key: Airflow's key
        """
        others = [self._flights[token] for token in self._passed_over.get(key, ())]
        newest = max(others, key=lambda flight: flight.launch.sequence, default=None)
        if newest is not None:
            self._current[key] = newest.token
        return newest

    def get(self, token: str) -> Flight | None:
        """Return the flight of ``token``, if it is known."""
        return self._flights.get(token)

    def current(self, key: Any) -> Flight | None:
        """Return the current flight of one of Airflow's keys, if there is one."""
        token = self._current.get(key)
        return None if token is None else self._flights.get(token)

    def is_current(self, flight: Flight) -> bool:
        """Whether ``flight`` is the current one of its key."""
        return self._current.get(flight.key) == flight.token

    def key_of(self, launch: Launch) -> Any:
        """Return how the scheduler knows the subject of a launch, whether it is in memory or not."""
        flight = self._flights.get(launch.token)
        if flight is not None:
            return flight.key
        return CallbackKey(id=launch.subject_id) if launch.kind is LaunchKind.CALLBACK else task_key(launch)

    def forget(self, token: str) -> Flight | None:
        """Remove a flight and return it, if it was known."""
        flight = self._flights.pop(token, None)
        if flight is None:
            return None
        if self._current.get(flight.key) == token:
            del self._current[flight.key]
        if (passed_over := self._passed_over.get(flight.key)) is not None:
            passed_over.discard(token)
            if not passed_over:
                del self._passed_over[flight.key]
        return flight

    def tokens(self) -> Collection[str]:
        """Return the tokens of all flights."""
        return set(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights.values()))

    def __len__(self) -> int:
        return len(self._flights)
