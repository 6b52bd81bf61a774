# SPDX-License-Identifier: Apache-2.0
"""The backend whose artefacts are pods.

Pods are created in the background, by a bounded number of threads over one pool of connections, and watched
by one thread for each namespace, which starts with the first pod: where no workload goes to Kubernetes, no
cluster is asked for.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from dispatcher.backends.base import (
    Artefact,
    Findings,
    Observation,
    Outcome,
    Postponed,
    Rejected,
    Stray,
    Submission,
    SubmitResult,
)
from dispatcher.backends.kubernetes.identity import Owner, selector
from dispatcher.backends.kubernetes.jobs import Jobs
from dispatcher.backends.kubernetes.options import ClusterOptions, WatchTimes, load_options
from dispatcher.backends.kubernetes.pipeline import CreationPipeline
from dispatcher.backends.kubernetes.podless import Podless
from dispatcher.backends.kubernetes.removal import Removal, plan_removal, plan_stop
from dispatcher.backends.kubernetes.table import PodTable
from dispatcher.backends.kubernetes.waiting import Patience, give_up
from dispatcher.domain.errors import BackendError, ConfigurationError, DispatcherError, PermanentError
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.workload import WorkloadKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from dispatcher.backends.kubernetes.access import ClusterAccess
    from dispatcher.backends.kubernetes.logs import Log
    from dispatcher.backends.kubernetes.options import Scope
    from dispatcher.backends.kubernetes.pods import BuiltPod
    from dispatcher.backends.kubernetes.watch import PodWatcher
    from dispatcher.settings import Settings

log = logging.getLogger(__name__)

OPERATION_SECONDS = 10.0
"""How long one call to the API server may take, where ``kube_client_request_args`` does not say."""

HOUSEKEEPING_SECONDS = 5.0
"""Between two looks for pods that are missing and for removals that failed."""

HANDED_OVER_AT_ONCE = 64
"""Creations that begin together; while they run, the next ones are built."""

HOUSEKEEPING_THREADS = 8
"""Removals, and other calls that are no creations, at once."""

STOP_SECONDS = 2.0
"""How long ``stop`` waits for removals that have begun, and for the watchers, which end by themselves."""


class KubernetesBackend:
    """Sends artefacts as pods; see ``Backend`` for the contract.

    The constructor and ``start`` touch no service.

    :param conf: Airflow's configuration, team-aware where an executor passes its own
    :param settings: ``[dispatcher]``
    :param team_name: the executor's team, for a label
    :param operation_seconds: how long one call to the API server may take by default
    :param watch_times: how patient the watchers are
    """

    def __init__(
        self,
        conf: Any,
        settings: Settings,
        *,
        team_name: str | None = None,
        operation_seconds: float = OPERATION_SECONDS,
        watch_times: WatchTimes | None = None,
    ) -> None:
        self._conf = conf
        self._settings = settings
        self._operation_seconds = operation_seconds
        self._watch_times = watch_times or WatchTimes()
        self._owner = Owner("", settings.deployment, team_name)
        self._table = PodTable(self._scope_of)
        self._podless = Podless(self._table, time.monotonic)
        self._creations = CreationPipeline(settings.pod_creation_concurrency)
        self._jobs = Jobs(HOUSEKEEPING_THREADS)
        self._access: ClusterAccess | None = None
        self._access_lock = threading.Lock()
        self._watchers: list[PodWatcher] = []
        self._removals: set[Removal] = set()
        self._needed = False
        self._next_housekeeping = 0.0

    @property
    def name(self) -> BackendName:
        """Which backend this is."""
        return BackendName.KUBERNETES

    def start(self, scheduler_job_id: str) -> None:
        """Take note of whose pods these are; connections and threads follow when they are needed.

        :param scheduler_job_id: the job id of the scheduler
        """
        self._owner = replace(self._owner, scheduler_job_id=scheduler_job_id)

    def problem(self) -> str | None:
        """Return, in one line, what is missing and what to do about it; None when all is well."""
        from dispatcher.backends.kubernetes.access import advice

        try:
            return self._open().problem()
        except ConfigurationError as exc:
            return str(exc)
        except BackendError as exc:
            return advice(exc)

    def submit(self, batch: Iterable[Submission]) -> Mapping[str, SubmitResult]:
        """Hand pods over to be created, in their order.

        :param batch: what to send
        :returns: one result for each token; ``results`` tells the rest
        """
        results: dict[str, SubmitResult] = {}
        rest = iter(batch)
        # Not one by one: threads that create already slow down the making of the rest.
        while some := list(islice(rest, HANDED_OVER_AT_ONCE)):
            results.update(self._hand_over(some))
        return results

    def _hand_over(self, batch: Sequence[Submission]) -> Mapping[str, SubmitResult]:
        self._needed = True
        try:
            access = self._open()
        except DispatcherError as exc:
            return {submission.token: Postponed(str(exc)) for submission in batch}
        self._watch_scopes(access)
        results: dict[str, SubmitResult] = {}
        creations: dict[str, Callable[[], Outcome]] = {}
        for submission in batch:
            built = self._build(access, submission)
            if isinstance(built, (Postponed, Rejected)):
                results[submission.token] = built
            else:
                creations[submission.token] = partial(access.creator.create, built, submission.attempts)
        results.update(self._creations.add(creations))
        return results

    @staticmethod
    def _build(access: ClusterAccess, submission: Submission) -> BuiltPod | Postponed | Rejected:
        try:
            return access.builder.build(submission)
        except PermanentError as exc:
            return Rejected(str(exc))
        except ConfigurationError as exc:
            return Postponed(str(exc))

    def results(self) -> Mapping[str, Outcome]:
        """Return what has become of creations since the last call; waits for nothing."""
        return self._creations.results()

    def watch(self, artefacts: Collection[Artefact]) -> None:
        """Take up artefacts that another scheduler sent.

        :param artefacts: those whose ending is to be told; what is not there although it was once confirmed
            will be told as gone
        """
        if not artefacts:
            return
        self._table.take_up(artefacts)
        self._needed = True
        self._keep_house(now=True)

    def observe(self) -> Sequence[Observation]:
        """Return the endings that the watchers have seen by now; waits for no call to the cluster.

        Pods that will not start, or have not in time, are told as given up.
        """
        if not self._needed:
            return []
        self._keep_house()
        return self._table.endings(self._given_up())

    def _given_up(self) -> dict[str, Observation]:
        now, patience = datetime.now(tz=UTC), self._patience
        looked_at = (
            (identity, give_up(identity, waiting, patience, now))
            for identity, waiting in self._table.not_started()
        )
        return {identity.external_id: one for identity, one in looked_at if one is not None}

    def why_waiting(self, token: str) -> str | None:
        """Return why the pod of a launch has not started, in the cluster's words.

        :param token: the launch token
        """
        waiting = (pod.waiting for pod in self._table.find(token) if pod.ending is None)
        return next((one.why for one in waiting if one is not None), None)

    def look_for(self, waiting: Mapping[str, str]) -> Findings:  # noqa: ARG002
        """Return nothing: pods are watched, and one that is gone is observed.

        :param waiting: launches that nobody has claimed
        """
        return Findings()

    def abandoned(self, claimed: Collection[str]) -> Mapping[str, str]:
        """Return what no pod is there of, nor known to have been: of all others ``observe`` tells.

        :param claimed: tokens of launches that were claimed and have told no result
        """
        try:
            scopes = self._options.scopes
        except ConfigurationError:
            return {}
        return self._podless.find(claimed, scopes)

    def revoke(self, artefacts: Collection[Artefact]) -> None:
        """Stop artefacts by deleting their pods, with the grace that pod and settings give them.

        :param artefacts: what to stop
        """
        self._take_away([one for artefact in artefacts for one in plan_stop(artefact, self._table)])

    def remove(self, artefacts: Collection[Artefact]) -> None:
        """Delete the pods of ended artefacts and their Secrets, or mark them as done where they are kept.

        :param artefacts: what has ended; it is told no more
        """
        if not artefacts:
            return
        try:
            options = self._options
        except ConfigurationError:
            removals = []
        else:
            removals = [one for artefact in artefacts for one in plan_removal(artefact, self._table, options)]
        for artefact in artefacts:
            self._table.forget(artefact.token)
        self._take_away(removals)

    def _take_away(self, removals: Collection[Removal]) -> None:
        """Begin what can be begun; what fails is tried again until it is done. Waits for nothing."""
        if not removals:
            return
        self._needed = True
        self._removals.update(removals)
        for removal in removals:
            if removal.external_id is not None:
                self._table.leaves(removal.external_id)
        try:
            access = self._open()
        except DispatcherError as exc:
            log.debug("%d pods wait for their removal: %s", len(removals), exc)
            return
        for removal in removals:
            start = partial(self._start_removal, access, removal)
            if not self._creations.withdraw(removal.token, then=start):
                start()

    def _start_removal(self, access: ClusterAccess, removal: Removal) -> None:
        self._jobs.start(removal, partial(self._finish_removal, access, removal))

    def _finish_removal(self, access: ClusterAccess, removal: Removal) -> None:
        try:
            access.remover.remove(removal)
        except PermanentError as exc:
            log.warning("The pod of %s stays: %s", removal.token, exc)
        except BackendError as exc:
            log.debug("The pod of %s is not removed yet: %s", removal.token, exc)
            return
        self._removals.discard(removal)

    def release(self, tokens: Collection[str]) -> None:
        """Tell no more of pods, and leave them where they are.

        :param tokens: another scheduler deals with their pods
        """
        for token in tokens:
            self._table.forget(token)

    def strays(self) -> Sequence[Stray]:
        """Return the pods that nobody waits for here, from what the watchers show; no list is asked for."""
        self._needed = True
        self._keep_house()
        return self._table.strays()

    def open_log(self, external_id: str) -> Log:
        """Return the last lines that a pod wrote, to be read as they come.

        Works in a backend that was not started, as in the API server.

        :param external_id: namespace/pod
        :returns: messages for people, and streams of lines
        """
        from dispatcher.backends.kubernetes.logs import no_log, open_log

        try:
            access = self._open()
        except DispatcherError as exc:
            return no_log(external_id, exc)
        return open_log(access, external_id)

    def stop(self) -> None:
        """End every thread and connection of this object."""
        self._creations.stop()
        self._jobs.stop(STOP_SECONDS)
        for watcher in self._watchers:
            watcher.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for watcher in self._watchers:
            watcher.join(max(0.0, deadline - time.monotonic()))
        self._watchers = []
        self._needed = False
        if self._access is not None:
            self._access.cluster.close()

    @cached_property
    def _options(self) -> ClusterOptions:
        return load_options(self._conf)

    @cached_property
    def _patience(self) -> Patience:
        # Airflow itself gives up tasks that stay queued, and connection tests; nobody gives up callbacks.
        limits = {WorkloadKind.CALLBACK: self._settings.callback_queued_timeout}
        return Patience(fatal=self._options.fatal_reasons, seconds=limits)

    def _scope_of(self, namespace: str) -> Scope:
        return self._options.scope_of(namespace)

    def _open(self) -> ClusterAccess:
        """Return access to the cluster.

        :raises ConfigurationError: a setting is wrong
        :raises BackendError: there is no configuration that can be used
        """
        # Imported late: the client is large, and most processes that make an executor never need it.
        from dispatcher.backends.kubernetes.access import open_access

        with self._access_lock:
            if self._access is None:
                self._access = open_access(
                    self._conf,
                    self._options,
                    self._settings,
                    self._owner,
                    self._table,
                    request_seconds=self._operation_seconds,
                    connections=self._settings.pod_creation_concurrency + HOUSEKEEPING_THREADS,
                    pause=self._creations.pause,
                )
            return self._access

    def _watch_scopes(self, access: ClusterAccess) -> None:
        from dispatcher.backends.kubernetes.watch import PodWatcher

        if self._watchers:
            return
        chosen = selector(self._owner)
        self._watchers = [
            PodWatcher(access.cluster, scope, chosen, self._table, self._watch_times)
            for scope in access.options.scopes
        ]
        for watcher in self._watchers:
            watcher.start()

    def _keep_house(self, *, now: bool = False) -> None:
        """Every few seconds, start what need not be waited for."""
        if not now and time.monotonic() < self._next_housekeeping:
            return
        self._next_housekeeping = time.monotonic() + HOUSEKEEPING_SECONDS
        try:
            access = self._open()
        except DispatcherError as exc:
            log.debug("The cluster is not looked at: %s", exc)
            return
        self._watch_scopes(access)
        self._jobs.start("sweep", partial(self._sweep, access))
        for removal in list(self._removals):
            if not self._creations.is_creating(removal.token):
                self._start_removal(access, removal)

    def _sweep(self, access: ClusterAccess) -> None:
        try:
            access.sweep(self._table)
        except BackendError as exc:
            log.debug("Missing pods are looked for later: %s", exc)
