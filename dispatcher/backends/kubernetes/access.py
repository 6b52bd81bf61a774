# SPDX-License-Identifier: Apache-2.0
"""Access to the cluster of one executor, and what is wrong where it is not to be had."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatcher.backends.kubernetes.client import Cluster, open_cluster
from dispatcher.backends.kubernetes.creation import PodCreator
from dispatcher.backends.kubernetes.endings import classify_pod
from dispatcher.backends.kubernetes.errors import (
    ForbiddenError,
    NoConfigurationError,
    UnauthorizedError,
)
from dispatcher.backends.kubernetes.identity import read_identity
from dispatcher.backends.kubernetes.pods import PodBuilder
from dispatcher.backends.kubernetes.removal import PodRemover
from dispatcher.domain.errors import BackendError, PermanentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.backends.kubernetes.identity import Owner
    from dispatcher.backends.kubernetes.options import ClusterOptions
    from dispatcher.backends.kubernetes.table import PodTable
    from dispatcher.settings import Settings

log = logging.getLogger(__name__)

MISSING_AT_ONCE = 100
"""Missing pods that one sweep looks for by name."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """What works on the cluster, over one pool of connections.

    :param options: ``[kubernetes_executor]``
    :param cluster: the calls
    :param builder: builds pods
    :param creator: creates them
    :param remover: takes them away
    """

    options: ClusterOptions
    cluster: Cluster
    builder: PodBuilder
    creator: PodCreator
    remover: PodRemover

    def problem(self) -> str | None:
        """Return, in one line, what keeps pods from being made here, and what to do; None if nothing does.

        :raises ConfigurationError: the base template or the image is missing or wrong
        """
        self.builder.check()
        for scope in self.options.scopes:
            try:
                self.cluster.probe(scope)
            except BackendError as exc:
                return f"the Kubernetes API server {self.cluster.address}: {advice(exc)}"
        return None

    def sweep(self, table: PodTable) -> None:
        """Look by name for pods that existed and that no list or watch shows any more.

        :param table: knows which, and learns what became of them
        :raises BackendError: the API server does not answer; nothing is concluded
        """
        for identity in table.missing()[:MISSING_AT_ONCE]:
            try:
                pod = self.cluster.read_pod(identity.namespace, identity.name)
            except PermanentError as exc:
                # In one namespace we may not look, say: that must not hold up the others.
                log.debug("Nothing is known of pod %s: %s", identity.external_id, exc)
                continue
            found = None if pod is None else read_identity(pod)
            if pod is None:
                table.gone(identity)
            elif found is not None and found.token == identity.token:
                table.looked_at(found, classify_pod(pod))


def open_access(
    conf: Any,
    options: ClusterOptions,
    settings: Settings,
    owner: Owner,
    table: PodTable,
    *,
    request_seconds: float,
    connections: int,
    pause: Callable[[float], None],
) -> ClusterAccess:
    """Open access to the cluster that the configuration names; nothing is asked of it yet.

    :param conf: Airflow's configuration, team-aware where an executor passes its own
    :param options: ``[kubernetes_executor]``
    :param settings: ``[dispatcher]``
    :param owner: whose pods are made
    :param table: learns what becomes of them
    :param request_seconds: time-out of one call where the options name none
    :param connections: calls at the same time, watches not counted
    :param pause: told for how many seconds the API server wants no creation at all
    :raises BackendError: there is no configuration that can be used
    """
    cluster = open_cluster(
        conf, options, connections=connections + len(options.scopes), request_seconds=request_seconds
    )
    return ClusterAccess(
        options=options,
        cluster=cluster,
        builder=PodBuilder(
            options,
            owner,
            settings.workload_delivery,
            callback_template=settings.callback_pod_template_file,
        ),
        creator=PodCreator(
            cluster, table, options.delete_options, retries=options.publish_retries, pause=pause
        ),
        remover=PodRemover(cluster, options, owner),
    )


def advice(exc: BackendError) -> str:
    """Return what is wrong, and what to do about it.

    :param exc: what a call raised
    """
    if isinstance(exc, NoConfigurationError):
        return (
            f"{exc}; set [kubernetes_executor] in_cluster = False and config_file (or KUBECONFIG), or run "
            "the scheduler in the cluster"
        )
    if isinstance(exc, UnauthorizedError):
        return f"{exc}; renew the credentials of the kubeconfig file or of the service account"
    if isinstance(exc, ForbiddenError):
        return f"{exc}; grant the scheduler's account the rights that docs/kubernetes.md lists"
    return f"{exc}; check its address, and that it can be reached from the scheduler"
