# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan: strikes what runs, and sees to it that it runs again."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import redis
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from dispatcher.local import components
from dispatcher.local.errors import LocalModeError
from tests.chaos.airflow_settings import STALL_SECONDS
from tests.chaos.clock import say
from tests.chaos.fleet import SCHEDULERS, WORKERS
from tests.chaos.ground import TOKEN_LABEL
from tests.chaos.plan import Blow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.chaos.fleet import Fleet
    from tests.chaos.ground import Ground
    from tests.chaos.plan import Strike

POLL_SECONDS = 0.5
ENDING_SECONDS = 30
"""How long one that was asked to end may take before it is killed."""

CRASHES = 20
"""After how many ends without a strike the run is given up."""

BROKER = "broker"


class Havoc:
    """Strikes, and mends.

    :param fleet: the processes
    :param ground: the services
    """

    def __init__(self, fleet: Fleet, ground: Ground) -> None:
        self._fleet = fleet
        self._ground = ground
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._struck: set[str] = set()
        self._api_server_away = False
        self.counts: Counter[str] = Counter()
        self.crashes: list[str] = []
        self.killed_pods: dict[str, float] = {}

    @property
    def mended(self) -> bool:
        """Whether all that was struck runs again."""
        return not self._later

    def api_server_answers(self) -> bool:
        """Whether the API server answers, since it was last struck."""
        self._api_server_away = self._api_server_away and not self._fleet.api_server_answers()
        return not self._api_server_away

    def strike(self, strike: Strike) -> None:
        """Deal one blow, if there is something to be struck."""
        blows = {
            Blow.SCHEDULER_KILLED: lambda: self._kill(SCHEDULERS, strike),
            Blow.SCHEDULER_ENDED: lambda: self._end(SCHEDULERS, strike),
            Blow.SCHEDULER_STALLED: lambda: self._stall(strike),
            Blow.WORKER_KILLED: lambda: self._kill(WORKERS, strike),
            Blow.WORKER_PARENT_KILLED: lambda: self._kill_parent(strike),
            Blow.WORKER_ENDED: lambda: self._end(WORKERS, strike),
            Blow.POD_REMOVED: lambda: self._delete_pod(strike, grace_period_seconds=0),
            Blow.POD_DELETED: lambda: self._delete_pod(strike),
            Blow.BROKER_CONNECTIONS_CUT: self._cut,
            Blow.BROKER_STALLED: lambda: self._stall_broker(strike),
            Blow.BROKER_RESTARTED: lambda: self._restart_broker(strike),
            Blow.API_SERVER_KILLED: lambda: self._kill_api_server(strike),
        }
        target = blows[strike.blow]()
        if target is None:
            say(f"{strike.blow}: none is there")
            return
        self.counts[strike.blow] += 1
        say(f"{strike.blow}: {target}")

    def mend(self) -> None:
        """Start again what is due, and what ended without a strike.

        :raises LocalModeError: components crash again and again
        """
        now = time.monotonic()
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        for _, action in due:
            action()
        for role, child in self._fleet.ended_by_themselves():
            if role in self._struck:
                continue  # it was asked to end
            self.crashes.append(child.name)
            say(f"{child.name} ended by itself with exit code {child.exit_code}:\n{child.tail()}")
            if len(self.crashes) > CRASHES:
                raise LocalModeError("components crash again and again")
            self._fleet.start(role)

    def _kill(self, roles: Sequence[str], strike: Strike) -> str | None:
        role = self._pick(roles, strike)
        if role is not None:
            self._struck.add(role)
            self._fleet.kill(role)
            self._in(strike.away, lambda: self._start(role))
        return role

    def _kill_api_server(self, strike: Strike) -> str | None:
        role = self._kill((components.API_SERVER,), strike)
        self._api_server_away = self._api_server_away or role is not None
        return role

    def _kill_parent(self, strike: Strike) -> str | None:
        role = self._pick(WORKERS, strike)
        if role is not None:
            self._struck.add(role)
            self._fleet.kill_parent(role)

            def start() -> None:
                self._fleet.bury()
                self._start(role)

            self._in(strike.away, start)
        return role

    def _end(self, roles: Sequence[str], strike: Strike) -> str | None:
        role = self._pick(roles, strike)
        if role is not None:
            self._struck.add(role)
            self._fleet.ask_to_end(role)
            self._in(POLL_SECONDS, lambda: self._start_after_end(role, time.monotonic() + ENDING_SECONDS))
        return role

    def _start_after_end(self, role: str, until: float) -> None:
        if self._fleet.running(role) is None:
            self._start(role)
        elif time.monotonic() < until:
            self._in(POLL_SECONDS, lambda: self._start_after_end(role, until))
        else:
            self._fleet.kill(role)
            self._start(role)

    def _stall(self, strike: Strike) -> str | None:
        role = self._pick(SCHEDULERS, strike)
        if role is not None:
            self._struck.add(role)
            self._fleet.stall(role)

            def go_on() -> None:
                self._fleet.go_on(role)
                self._struck.discard(role)

            self._in(STALL_SECONDS + strike.away, go_on)
        return role

    def _delete_pod(self, strike: Strike, **options: Any) -> str | None:
        try:
            pods = self._ground.running_pods()
            if not pods:
                return None
            pod = pods[int(strike.pick * len(pods))]
            when = time.time()
            self._ground.pods.delete_namespaced_pod(pod.metadata.name, self._ground.namespace, **options)
        except (ApiException, HTTPError) as exc:
            say(f"no pod was deleted: {type(exc).__name__}")
            return None
        self.killed_pods[f"pod {pod.metadata.labels[TOKEN_LABEL]}"] = when
        return f"{pod.metadata.name}, {pod.status.phase}"

    def _cut(self) -> str | None:
        if BROKER in self._struck:
            return None
        with redis.Redis.from_url(self._ground.broker.url, socket_timeout=5) as client:
            cut = sum(client.client_kill_filter(_type=kind) for kind in ("normal", "pubsub"))
        return f"{cut} of them"

    def _stall_broker(self, strike: Strike) -> str | None:
        if BROKER in self._struck:
            return None
        self._struck.add(BROKER)
        self._ground.broker.hang()
        self._in(strike.away, lambda: self._broker_is_back(self._ground.broker.resume))
        return f"for {strike.away:.0f} s"

    def _restart_broker(self, strike: Strike) -> str | None:
        if BROKER in self._struck:
            return None
        self._struck.add(BROKER)
        self._ground.broker.stop()
        self._in(strike.away, lambda: self._broker_is_back(self._ground.broker.start))
        return f"for {strike.away:.0f} s, with everything in it"

    def _broker_is_back(self, how: Callable[[], None]) -> None:
        how()
        self._struck.discard(BROKER)

    def _pick(self, roles: Sequence[str], strike: Strike) -> str | None:
        there = [role for role in roles if role not in self._struck and self._fleet.running(role)]
        return there[int(strike.pick * len(there))] if there else None

    def _start(self, role: str) -> None:
        self._fleet.start(role)
        self._struck.discard(role)

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))
