# SPDX-License-Identifier: Apache-2.0
"""Connection tests: they have no launch and no fence, and are never sent twice."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.backends.base import (
    Artefact,
    Backend,
    Observation,
    Outcome,
    Postponed,
    Rejected,
    Sent,
    Submission,
    SubmitResult,
    Underway,
)
from dispatcher.dispatch.heartbeat import Heartbeat
from dispatcher.dispatch.signing import Signer
from dispatcher.dispatch.submit import Prepared, prepare
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.routing import Route, Router
from dispatcher.domain.workload import WorkloadKind, WorkloadView

log = logging.getLogger(__name__)


class ConnectionTests:
    """The connection tests that this scheduler sent and whose slots they hold.

    :param backends: by name
    :param router: chooses routes
    :param signer: signs at the send
    :param team: the team of this executor
    """

    def __init__(
        self, backends: Mapping[BackendName, Backend], router: Router, signer: Signer, team: str | None
    ) -> None:
        self._backends = backends
        self._router = router
        self._signer = signer
        self._team = team
        self._sent: dict[str, tuple[Any, BackendName]] = {}
        self._given_up: dict[BackendName, list[Artefact]] = {name: [] for name in backends}

    def submit(self, tests: Sequence[Any]) -> Heartbeat:
        """Send tests; whatever happens to the send, it is not repeated.

        :param tests: Airflow's workloads
        """
        step = Heartbeat()
        for test in tests:
            token = str(test.connection_test_id)
            view = WorkloadView(kind=WorkloadKind.TEST_CONNECTION, queue=test.queue, team=self._team)
            route = self._router.route(view)
            result = self._send(test, token, route)
            if isinstance(result, (Sent, Underway)):
                self._sent[token] = (test.key, route.backend)
                step.running.add(test.key)
                continue
            _tell_not_sent(token, result)
            step.freed.add(test.key)
        return step

    def collect(self, results: Mapping[str, Outcome], step: Heartbeat) -> None:
        """Free the slots of tests whose send was underway and did not succeed.

        :param results: what the backends told, by token
        :param step: takes the keys that are free
        """
        for token in self._sent.keys() & results.keys():
            result = results[token]
            if not isinstance(result, Sent):
                _tell_not_sent(token, result)
                # It may be there, if the answer never came: nobody waits for it any more.
                step.freed.add(self._sent[token][0])
                self.give_up(token)

    def _send(self, test: Any, token: str, route: Route) -> SubmitResult:
        prepared = prepare(self._signer, test, None)
        if not isinstance(prepared, Prepared):
            return prepared
        submission = Submission(
            token=token,
            kind=WorkloadKind.TEST_CONNECTION,
            queue=route.queue,
            payload=prepared.payload,
            workload=prepared.workload,
        )
        return self._backends[route.backend].submit([submission])[token]

    def give_up(self, token: str) -> None:
        """Stop waiting for a test; its artefact is stopped in the next heartbeat.

        :param token: the UUID of the test
        """
        test = self._sent.pop(token, None)
        if test is not None:
            self._given_up[test[1]].append(Artefact(token, WorkloadKind.TEST_CONNECTION))

    def end(self, observed: Mapping[BackendName, Sequence[Observation]], step: Heartbeat) -> set[str]:
        """Free the slots of tests that ended; their result is with the API.

        :param observed: endings by backend
        :param step: takes the keys that are free
        :returns: the UUIDs of those that ended
        """
        done: set[str] = set()
        for endings in observed.values():
            for ending in endings:
                test = self._sent.pop(ending.token, None)
                if test is not None:
                    step.freed.add(test[0])
                    done.add(ending.token)
        return done

    def take_given_up(self, name: BackendName) -> list[Artefact]:
        """Return the artefacts to be stopped in one backend, and forget them.

        :param name: the backend
        """
        given_up, self._given_up[name] = self._given_up[name], []
        return given_up


def _tell_not_sent(token: str, result: Postponed | Rejected) -> None:
    level = logging.ERROR if isinstance(result, Rejected) else logging.WARNING
    log.log(level, "Connection test %s was not sent and will time out: %s", token, result.reason)
