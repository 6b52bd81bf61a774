# SPDX-License-Identifier: Apache-2.0
"""Taking pods away: stopping them, and clearing up after those that have ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dispatcher.backends.kubernetes.identity import (
    DONE,
    read_identity,
    selector_of_launch,
    split_external_id,
)

if TYPE_CHECKING:
    from dispatcher.backends.base import Artefact
    from dispatcher.backends.kubernetes.client import Cluster
    from dispatcher.backends.kubernetes.identity import Owner
    from dispatcher.backends.kubernetes.options import ClusterOptions
    from dispatcher.backends.kubernetes.table import PodTable


@dataclass(frozen=True, slots=True)
class Removal:
    """One pod to be taken away.

    :param token: whose pod
    :param external_id: where it is; None if that has to be found out
    :param keep: leave the pod for people to look at, marked so that nobody watches it any more
    :param secret: its workload travels in a Secret
    """

    token: str
    external_id: str | None
    keep: bool = False
    secret: bool = False


class PodRemover:
    """Takes pods away; may be used by several threads.

    :param cluster: where
    :param options: which pods are deleted, and how
    :param owner: whose pods they are
    """

    def __init__(self, cluster: Cluster, options: ClusterOptions, owner: Owner) -> None:
        self._cluster = cluster
        self._options = options
        self._owner = owner

    def remove(self, removal: Removal) -> None:
        """Take a pod away, and the Secret with its workload; what is not there is no error.

        The Secret belongs to the pod and would end with it, but not before the cluster's garbage collector
        comes round, and not with a pod that is kept.

        :raises BackendError: it is not certain that it was done
        """
        places = [removal.external_id] if removal.external_id else self._find(removal.token)
        for place in places:
            namespace, name = split_external_id(place)
            if not removal.keep:
                self._cluster.delete_pod(namespace, name, self._options.delete_options)
            if removal.secret:
                self._cluster.delete_secret(namespace, name)
            if removal.keep:
                # Last: nobody looks at the pod again after this.
                self._cluster.label_pod(namespace, name, {DONE: "True"})

    def _find(self, token: str) -> list[str]:
        selector = selector_of_launch(self._owner, token)
        return [
            identity.external_id
            for scope in self._options.scopes
            for pods, _version in self._cluster.pod_pages(scope, selector)
            for pod in pods
            if (identity := read_identity(pod)) is not None and identity.token == token
        ]


def plan_stop(artefact: Artefact, table: PodTable) -> list[Removal]:
    """Return what it takes to stop an artefact.

    :param artefact: what is to be stopped
    :param table: knows its pods
    """
    secrets = {pod.identity.external_id: pod.secret for pod in table.find(artefact.token)}
    if artefact.external_id is not None:
        secrets.setdefault(artefact.external_id, False)
    if not secrets:
        return [Removal(artefact.token, None)]
    return [Removal(artefact.token, place, secret=secret) for place, secret in secrets.items()]


def plan_removal(artefact: Artefact, table: PodTable, options: ClusterOptions) -> list[Removal]:
    """Return what it takes to clear up after an artefact, as the settings say.

    What is being taken away already is left out: one call for each pod is enough.

    :param artefact: what has ended
    :param table: knows its pods, and how they ended
    :param options: which pods are kept
    """
    pods = {pod.identity.external_id: pod for pod in table.find(artefact.token)}
    planned = []
    for removal in plan_stop(artefact, table):
        pod = pods.get(removal.external_id or "")
        if pod is not None and pod.leaving:
            continue
        failed = pod is not None and pod.ending is not None and not pod.ending.ok
        keep = not options.delete_pods or (failed and not options.delete_failed_pods)
        planned.append(replace(removal, keep=keep))
    return planned
