# SPDX-License-Identifier: Apache-2.0
"""Which services the local stack runs on: its own embedded ones, unless it is told of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A metadata database: empty, and for this stack alone.

    :param url: SQLAlchemy address for the schedulers and the API server
    :param async_url: the same with an asynchronous driver
    """

    url: str = field(repr=False)
    async_url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Kubernetes cluster.

    :param kubeconfig: file that says how to reach it
    :param namespace: for this stack alone
    :param pod_template: pod in which Python, this distribution and the stack's directory are found where
        they are here; None for the plain pod that the embedded cluster needs
    """

    kubeconfig: Path
    namespace: str
    pod_template: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services to use; None means the embedded one.

    :param database: in place of a SQLite file
    :param broker_url: in place of the embedded broker; also holds the results
    :param cluster: in place of the embedded cluster
    """

    database: Database | None = None
    broker_url: str | None = field(default=None, repr=False)
    cluster: Cluster | None = None
