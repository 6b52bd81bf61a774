# SPDX-License-Identifier: Apache-2.0
"""Taking pods away: stopping them, and clearing up after those that have ended."""

from __future__ import annotations

from dataclasses import dataclass
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
    :param deployment: ``[dispatcher] deployment``
    """

    def __init__(self, cluster: Cluster, options: ClusterOptions, deployment: str) -> None:
        self._cluster = cluster
        self._options = options
        self._deployment = deployment

    def remove(self, removal: Removal) -> None:
        """Take a pod away; one that is not there is no error.

        :raises BackendError: it is not certain that it was done
        """
        places = [removal.external_id] if removal.external_id else self._find(removal.token)
        for place in places:
            namespace, name = split_external_id(place)
            if not removal.keep:
                self._cluster.delete_pod(namespace, name, self._options.delete_options)
                continue
            if removal.secret:
                self._cluster.delete_secret(namespace, name)
            self._cluster.label_pod(namespace, name, {DONE: "True"})

    def _find(self, token: str) -> list[str]:
        selector = selector_of_launch(self._deployment, token)
        return [
            identity.external_id
            for scope in self._options.scopes
            for pod in self._cluster.list_pods(scope, selector)[0]
            if (identity := read_identity(pod)) is not None and identity.token == token
        ]


def plan_stop(artefact: Artefact, table: PodTable) -> Removal:
    """Return what it takes to stop an artefact.

    :param artefact: what is to be stopped
    :param table: knows where it is, if the ledger does not
    """
    known = table.find(artefact.token)
    where = known.identity.external_id if known is not None else None
    return Removal(artefact.token, artefact.external_id or where)


def plan_removal(artefact: Artefact, table: PodTable, options: ClusterOptions) -> Removal:
    """Return what it takes to clear up after an artefact, as the settings say.

    :param artefact: what has ended
    :param table: knows how
    :param options: which pods are kept
    """
    stop = plan_stop(artefact, table)
    known = table.find(artefact.token)
    ending = known.ending if known is not None else None
    failed = ending is not None and not ending.ok
    keep = not options.delete_pods or (failed and not options.delete_failed_pods)
    return Removal(
        stop.token, stop.external_id, keep=keep, secret=known.secret if known is not None else False
    )
