# SPDX-License-Identifier: Apache-2.0
"""The tour of ``make demo`` on PostgreSQL, Redis and a cluster whose pods are real containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from dispatcher.local.interrupts import Interrupts
from dispatcher.local.progress import Progress
from dispatcher.local.services import Cluster, Database, Services
from dispatcher.local.stack import running
from tests.support.clusters import POD_TEMPLATE_VARIABLE
from tests.support.services import claimed_redis_database, own_namespace, own_postgres_database

TOUR_SECONDS = 600


def database(url):
    address = make_url(url)
    return Database(
        url=address.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False),
        async_url=address.set(drivername="postgresql+asyncpg").render_as_string(hide_password=False),
    )


@pytest.fixture
def services():
    template = os.environ.get(POD_TEMPLATE_VARIABLE)
    if not template:
        pytest.skip(f"{POD_TEMPLATE_VARIABLE} names no pod template")
    with own_postgres_database() as url, claimed_redis_database() as broker, own_namespace() as namespace:
        yield Services(
            database=database(url),
            broker_url=broker,
            cluster=Cluster(
                kubeconfig=Path(os.environ["KUBECONFIG"]), namespace=namespace, pod_template=Path(template)
            ),
        )


@pytest.mark.needs("postgres", "redis", "kubernetes", "node")
@pytest.mark.timeout(900)
def test_the_tour_comes_out_as_it_must(services):
    with running(Progress(), Interrupts(), services) as stack:
        assert stack.run_tour(TOUR_SECONDS) == 0
