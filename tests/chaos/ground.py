# SPDX-License-Identifier: Apache-2.0
"""What a run has for itself: a database with an audit of the ledger, a Redis, a namespace, a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from kubernetes.client import CoreV1Api, V1DeleteOptions
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from dispatcher.local.pod_template import with_environment
from dispatcher.local.services import Cluster, Database
from tests.chaos.bodies import TOKEN_VARIABLE
from tests.support.clusters import POD_TEMPLATE_VARIABLE
from tests.support.redis_server import RedisServer
from tests.support.services import kubernetes_client, missing, own_namespace, own_postgres_database

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import ExitStack

    from sqlalchemy import Engine

    from dispatcher.local.interrupts import Interrupts

NEEDED = ("postgres", "kubernetes", "node")
TOKEN_LABEL = "airflow-launch-token"
GONE_SECONDS = 30
"""How long pods may take to end when the namespace is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Services of a run's own.

    :param engine: the metadata database
    :param pods: the core API of the cluster
    """

    root: Path
    database: Database
    engine: Engine
    broker: RedisServer
    cluster: Cluster
    pods: CoreV1Api

    @property
    def namespace(self) -> str:
        """Where pods go."""
        return self.cluster.namespace

    def running_pods(self) -> list[Any]:
        """Return the pods that have not ended and are not being deleted, in the order of their names."""
        found = self.pods.list_namespaced_pod(self.namespace, _request_timeout=10).items
        return [
            pod
            for pod in sorted(found, key=lambda pod: str(pod.metadata.name))
            if pod.status.phase in ("Pending", "Running") and pod.metadata.deletion_timestamp is None
        ]


def what_is_missing() -> list[str]:
    """Return why a run cannot be made here, one reason each."""
    reasons = [reason for name in NEEDED if (reason := missing(name))]
    if shutil.which("redis-server") is None:
        reasons.append("there is no redis-server to start and stop")
    if not os.environ.get(POD_TEMPLATE_VARIABLE):
        reasons.append(f"{POD_TEMPLATE_VARIABLE} names no pod template")
    return reasons


def prepare(stack: ExitStack, interrupts: Interrupts) -> Ground:
    """Make everything, and have ``stack`` remove it.

    :param stack: whose end ends the run
    :param interrupts: signals wait while something is made, so that nothing is left behind
    """
    with interrupts.held():
        root = Path(tempfile.mkdtemp(prefix="dispatcher-chaos-"))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        database = _database(stack.enter_context(own_postgres_database()))
        engine = create_engine(database.url, pool_pre_ping=True, isolation_level="AUTOCOMMIT")
        stack.callback(engine.dispose)
        broker = stack.enter_context(RedisServer(root))
        namespace = stack.enter_context(own_namespace())
        pods = CoreV1Api(stack.enter_context(kubernetes_client()))
        stack.enter_context(_emptied(pods, namespace))
        template = Path(os.environ[POD_TEMPLATE_VARIABLE])
        cluster = Cluster(
            kubeconfig=Path(os.environ["KUBECONFIG"]), namespace=namespace, pod_template=template
        )
    return Ground(root=root, database=database, engine=engine, broker=broker, cluster=cluster, pods=pods)


def write_pod_template(target: Path, source: Path, env: Mapping[str, str]) -> None:
    """Write a pod template whose base container has further variables, and knows its launch token.

    :param source: template to start from
    :param env: variables to add
    """
    pod = with_environment(yaml.safe_load(source.read_text(encoding="utf-8")), env)
    token = {"fieldRef": {"fieldPath": f"metadata.labels['{TOKEN_LABEL}']"}}
    pod["spec"]["containers"][0]["env"].append({"name": TOKEN_VARIABLE, "valueFrom": token})
    target.touch(mode=0o600)
    target.write_text(yaml.safe_dump(pod), encoding="utf-8")


@contextmanager
def _emptied(pods: CoreV1Api, namespace: str) -> Iterator[None]:
    """End the pods before the folder is removed that they write to."""
    try:
        yield
    finally:
        pods.delete_collection_namespaced_pod(namespace, body=V1DeleteOptions(grace_period_seconds=1))
        until = time.monotonic() + GONE_SECONDS
        while pods.list_namespaced_pod(namespace).items and time.monotonic() < until:
            time.sleep(0.5)


def _database(url: str) -> Database:
    address = make_url(url)
    return Database(
        url=address.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False),
        async_url=address.set(drivername="postgresql+asyncpg").render_as_string(hide_password=False),
    )
