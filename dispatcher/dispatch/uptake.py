# SPDX-License-Identifier: Apache-2.0
"""Uptake: what a transaction found and wrote goes into memory once it is committed, and to the slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dispatcher.backends.base import Artefact, Backend
from dispatcher.dispatch.flights import Flight, FlightTable, artefact_of
from dispatcher.dispatch.heartbeat import Heartbeat
from dispatcher.dispatch.observe import Ended
from dispatcher.dispatch.reports import Report, ReportTable, ending_of, is_winding_down
from dispatcher.domain.launch import Launch
from dispatcher.domain.lifecycle import BackendName, LaunchState


@dataclass(frozen=True, slots=True, kw_only=True)
class Uptake:
    """Keeps the flights and the reports of one executor as the ledger has them.

    :param table: the flights in memory
    :param reports: the ends that Airflow has to hear of
    :param backends: by name; they are told what to watch
    :param utcnow: the present
    :param patience: seconds that a superseded claimant may take to finish
    """

    table: FlightTable
    reports: ReportTable
    backends: Mapping[BackendName, Backend]
    utcnow: Callable[[], datetime]
    patience: float

    def free(self, token: str, step: Heartbeat) -> None:
        """Forget a launch; its slot is free unless another launch of the same key has it, or takes it.

        :param token: the launch token
        :param step: takes what Airflow's slots have to know
        """
        flight = self.table.forget(token)
        if flight is None or self.table.current(flight.key) is not None:
            return
        step.freed.add(flight.key)
        step.running.discard(flight.key)
        step.queued.pop(flight.key, None)
        other = self.table.next_of(flight.key)
        if other is not None and other.workload is not None and not other.underway:
            step.queued[other.key] = other.workload
        elif other is not None:
            step.running.add(other.key)

    def forget(self, tokens: Collection[str], step: Heartbeat) -> None:
        """Forget launches that are another scheduler's now, and wait for their artefacts no more.

        Their new owner takes away what they leave, and may do so before it was seen here.

        :param tokens: which ones
        :param step: takes what Airflow's slots have to know
        """
        for name, backend in self.backends.items():
            mine = (flight for token in tokens if (flight := self.table.get(token)) is not None)
            if left := [flight.token for flight in mine if flight.launch.backend is name]:
                backend.release(left)
        for token in tokens:
            self.free(token, step)

    def take_up_ends(self, ended: Sequence[Ended], step: Heartbeat) -> None:
        """Take up ends that were written.

        :param ended: the launches, with what their ends are told as
        :param step: takes what Airflow's slots and event logs have to know
        """
        for one in ended:
            key = self.table.key_of(one.launch)
            if one.told and not one.ending.ok:
                step.note(key, "launch failed", one.ending.reason)
            self.reports.add(Report(one.launch, key, one.ending))
            self.free(one.launch.token, step)

    def take_up_unsettled(
        self, launches: Sequence[Launch], artefacts_ended: Collection[str], step: Heartbeat
    ) -> None:
        """Take up launches that have ended and are not settled, whoever ended them.

        :param launches: all of them
        :param artefacts_ended: tokens whose artefact was seen to have ended
        :param step: takes what Airflow's slots have to know
        """
        for launch in launches:
            key = self.table.key_of(launch)
            self.free(launch.token, step)
            ended = launch.token in artefacts_ended
            winding_down = not ended and is_winding_down(launch, self.utcnow(), self.patience)
            if launch.token in self.reports or winding_down:
                continue
            self.reports.add(Report(launch, key, ending_of(launch)))

    def take_up_open(self, launches: Sequence[Launch], workloads: Mapping[str, Any], step: Heartbeat) -> None:
        """Take up open launches that were not in memory.

        :param launches: as read
        :param workloads: what is to be sent, by token, of those that no worker has claimed
        :param step: takes what Airflow's slots have to know
        """
        watch: dict[BackendName, list[Artefact]] = {name: [] for name in self.backends}
        for launch in launches:
            key = self.table.key_of(launch)
            workload = workloads.get(launch.token)
            current = self.table.take_up(Flight(launch=launch, key=key, workload=workload))
            # Where a newer launch is current, the slot and what is to be sent under the key are its own.
            if current and workload is not None:
                step.queued[key] = workload
            elif current:
                step.running.add(key)
            if launch.state is not LaunchState.ISSUED:
                watch[launch.backend].append(artefact_of(launch))
        for name, artefacts in watch.items():
            if artefacts:
                self.backends[name].watch(artefacts)
