# SPDX-License-Identifier: Apache-2.0
"""Real services: which of them answer, and a corner of each that one test run has for itself.

Services are found by ``REDIS_URL``, ``RABBITMQ_URL``, ``POSTGRES_URL`` and ``KUBECONFIG``; ``docker`` is an
engine that answers, with Compose and the base images of docker-compose.yml. A test names those it talks to
with ``@pytest.mark.needs(...)``; without them it is skipped by name, or fails where
``DISPATCHER_TESTS_REQUIRE`` lists the service.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

REQUIRE_VARIABLE = "DISPATCHER_TESTS_REQUIRE"
"""Comma list of services whose absence is a failure instead of a skip."""

PROBE_SECONDS = 5
REQUIRED_SECONDS = 30
_CLAIM_SECONDS = 3600


def enforce(item: pytest.Item) -> None:
    """Skip or fail ``item`` when a service named by its ``needs`` markers is missing.

    :raises pytest.UsageError: a marker names a service that is not known.
    """
    required = {name.strip() for name in os.environ.get(REQUIRE_VARIABLE, "").split(",") if name.strip()}
    if unknown := required - _PROBES.keys():
        raise pytest.UsageError(f"{REQUIRE_VARIABLE} names unknown services: {sorted(unknown)}")
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if name not in _PROBES:
                raise pytest.UsageError(f"{item.nodeid} needs {name!r}; known are {sorted(_PROBES)}")
            patience = REQUIRED_SECONDS if name in required else 0
            if (reason := missing(name, patience)) is None:
                continue
            if name in required:
                pytest.fail(f"required service {name} is missing: {reason}", pytrace=False)
            pytest.skip(f"service {name} is missing: {reason}")


@cache
def missing(name: str, patience: float = 0) -> str | None:
    """Say why the service is not there, or ``None`` when it answers; asked once per process.

    :param name: one of those that can be named in ``needs``
    :param patience: seconds for which to ask again one that does not answer: it may only be busy
    """
    until = time.monotonic() + patience
    while (reason := _PROBES[name]()) is not None and "no answer" in reason and time.monotonic() < until:
        time.sleep(1)
    return reason


def _probe_redis() -> str | None:
    if not (url := os.environ.get("REDIS_URL")):
        return "REDIS_URL is not set"
    import redis

    try:
        with redis.Redis.from_url(url, socket_connect_timeout=PROBE_SECONDS) as client:
            client.ping()
    except redis.RedisError as error:
        return f"no answer at REDIS_URL ({type(error).__name__})"
    return None


def _probe_rabbitmq() -> str | None:
    if not (url := os.environ.get("RABBITMQ_URL")):
        return "RABBITMQ_URL is not set"
    from kombu import Connection

    with Connection(url, connect_timeout=PROBE_SECONDS) as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0)
        except connection.recoverable_connection_errors as error:
            return f"no answer at RABBITMQ_URL ({type(error).__name__})"
    return None


def _probe_postgres() -> str | None:
    if not (url := os.environ.get("POSTGRES_URL")):
        return "POSTGRES_URL is not set"
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": PROBE_SECONDS})
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except ImportError:
        return "the extra `postgres` is not installed"
    except SQLAlchemyError as error:
        return f"no answer at POSTGRES_URL ({type(error).__name__})"
    return None


def _probe_kubernetes() -> str | None:
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG is not set"
    from kubernetes.client import VersionApi
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        with kubernetes_client() as client:
            VersionApi(client).get_code(_request_timeout=PROBE_SECONDS)
    except (ApiException, HTTPError, OSError) as error:
        return f"no answer from the cluster of KUBECONFIG ({type(error).__name__})"
    return None


def _probe_node() -> str | None:
    if (reason := missing("kubernetes")) is not None:
        return reason
    from kubernetes.client import CoreV1Api

    with kubernetes_client() as client:
        nodes = CoreV1Api(client).list_node(_request_timeout=PROBE_SECONDS).items
    ready = [
        node.metadata.name
        for node in nodes
        for condition in node.status.conditions or ()
        if condition.type == "Ready" and condition.status == "True"
    ]
    return None if ready else "the cluster of KUBECONFIG has no node that is Ready"


def _probe_docker() -> str | None:
    from tests.support import compose

    return compose.missing()


_PROBES: dict[str, Callable[[], str | None]] = {
    "redis": _probe_redis,
    "rabbitmq": _probe_rabbitmq,
    "postgres": _probe_postgres,
    "kubernetes": _probe_kubernetes,
    "node": _probe_node,
    "docker": _probe_docker,
}


@contextmanager
def kubernetes_client() -> Iterator[ApiClient]:
    """Open a client of the cluster that ``KUBECONFIG`` names, and close its connections afterwards."""
    from kubernetes.config import new_client_from_config

    with new_client_from_config(os.environ["KUBECONFIG"]) as client:
        yield client


@contextmanager
def claimed_redis_database() -> Iterator[str]:
    """Claim an empty numbered database of the server at ``REDIS_URL`` and yield its URL.

    The claim is a key in the server's own default database, so test runs at the same time do not share.

    :raises RuntimeError: every numbered database is taken or holds foreign data.
    """
    import redis

    url = os.environ["REDIS_URL"]
    with redis.Redis.from_url(url) as home:
        base = home.connection_pool.connection_kwargs.get("db", 0)
        owner = secrets.token_hex(8)
        for number in range(15, 0, -1):
            key = f"dispatcher-tests:database:{number}"
            if number == base or not home.set(key, owner, nx=True, ex=_CLAIM_SECONDS):
                continue
            own = _with_database(url, number)
            try:
                with redis.Redis.from_url(own) as client:
                    if client.dbsize():
                        continue
                    yield own
                    client.flushdb()
                return
            finally:
                if home.get(key) == owner.encode():
                    home.delete(key)
    raise RuntimeError("no numbered Redis database is free")


def _with_database(url: str, number: int) -> str:
    from urllib.parse import urlsplit, urlunsplit

    return urlunsplit(urlsplit(url)._replace(path=f"/{number}"))


def flush_redis_database(url: str) -> None:
    """Empty the one numbered database that ``url`` names."""
    import redis

    with redis.Redis.from_url(url) as client:
        client.flushdb()


@contextmanager
def own_postgres_database() -> Iterator[str]:
    """Create a database with a random name on the server at ``POSTGRES_URL``, yield its URL, and drop it."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import NullPool

    server = make_url(os.environ["POSTGRES_URL"])
    name = f"dispatcher_test_{secrets.token_hex(4)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


@contextmanager
def own_namespace() -> Iterator[str]:
    """Create a namespace with a random name, yield the name, and delete it with what it holds.

    Pods are deleted by name first: a cluster without a namespace controller never empties a namespace.
    """
    from kubernetes.client import CoreV1Api, V1DeleteOptions, V1Namespace, V1ObjectMeta
    from kubernetes.client.exceptions import ApiException

    name = f"dispatcher-test-{secrets.token_hex(4)}"
    with kubernetes_client() as client:
        api = CoreV1Api(client)
        api.create_namespace(V1Namespace(metadata=V1ObjectMeta(name=name)))
        try:
            yield name
        finally:
            now = V1DeleteOptions(grace_period_seconds=0)
            with suppress(ApiException):
                api.delete_collection_namespaced_pod(name, body=now)
            with suppress(ApiException):
                api.delete_collection_namespaced_secret(name)
            api.delete_namespace(name, body=now)
