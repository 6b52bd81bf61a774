# SPDX-License-Identifier: Apache-2.0
"""C1: the publish times out although the broker took the message; it is sent again.

Right: identical tokens, one run, no failure. RabbitMQ is asked to confirm, or no publish waits for it.
"""

from __future__ import annotations

import time

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import service_dispatching as run
from tests.support.broker_sites import open_site
from tests.support.dispatching import claim, launch_of, loop, queue_task

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("airflow_db")]

BLOCKING_SECONDS = 8.0
"""How long one turn of the loop may take: the operation time-out is 1 s."""


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.needs("redis")),
        pytest.param("rabbitmq", marks=pytest.mark.needs("rabbitmq")),
    ]
)
def site(request, monkeypatch):
    with open_site(request.param) as site:
        for name, value in site.environment.items():
            monkeypatch.setenv(name, value)
        section = "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__"
        if site.kind == "rabbitmq":
            monkeypatch.setenv(f"{section}CONFIRM_PUBLISH", "True")
        for option in ("SOCKET_TIMEOUT", "READ_TIMEOUT", "WRITE_TIMEOUT"):
            monkeypatch.setenv(f"{section}{option}", "1")
        yield site


def is_sent(executor, token):
    """Whether the executor was told that the broker has the message."""
    return any(one.token == token and one.workload is None for one in executor.dispatcher.in_flight())


def test_two_messages_of_one_token_and_one_claim(site):
    with run.started_executor() as executor:
        before = queue_task(executor, queue=site.queue, task_id="before")
        run.drive(executor, lambda: is_sent(executor, before), "the connection is there")
        assert [headers["id"] for headers in site.take_all(site.queue)] == [before]

        token = queue_task(executor, queue=site.queue, task_id="muted")
        site.relay.mute_after(token)
        started = time.monotonic()
        told = list(loop(executor).items())
        assert time.monotonic() - started < BLOCKING_SECONDS
        assert site.waiting() == 1, "the broker has it"
        assert not is_sent(executor, token), "and the executor does not know"
        assert launch_of(token).state is LaunchState.SUBMITTED
        site.relay.unmute()
        told += run.drive(executor, lambda: is_sent(executor, token), "it is sent again")

        sent = [headers["id"] for headers in site.take_all(site.queue)]
        assert sent == [token, token]
        assert claim(token, "nonce:first")
        assert not claim(token, "nonce:second")
        told += loop(executor).items()
        assert told == []
        assert executor.slots_occupied == 2
        assert launch_of(token).state is LaunchState.CLAIMED
