# SPDX-License-Identifier: Apache-2.0
"""The services that later tests rely on really answer."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.support import services


@pytest.mark.needs("redis")
def test_redis_keeps_a_value(redis_url):
    import redis

    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("key", "value")
        assert client.get("key") == b"value"


@pytest.mark.needs("redis")
def test_two_runs_get_two_redis_databases(redis_url):
    with services.claimed_redis_database() as other:
        assert other != redis_url


@pytest.mark.needs("postgres")
def test_postgres_locks_rows():
    engine = create_engine(os.environ["POSTGRES_URL"], poolclass=NullPool)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1 FOR UPDATE SKIP LOCKED")).scalar_one() == 1


@pytest.mark.needs("kubernetes")
def test_kubernetes_creates_a_pod_once(kube_namespace):
    from kubernetes.client import ApiException, CoreV1Api

    pod = {
        "metadata": {"name": "once"},
        "spec": {"containers": [{"name": "base", "image": "none", "command": ["true"]}]},
    }
    with services.kubernetes_client() as client:
        api = CoreV1Api(client)
        api.create_namespaced_pod(kube_namespace, pod)
        with pytest.raises(ApiException) as caught:
            api.create_namespaced_pod(kube_namespace, pod)
    assert caught.value.status == 409


@pytest.mark.needs("node")
def test_a_node_is_ready():
    assert services.missing("node") is None
