# SPDX-License-Identifier: Apache-2.0
"""A whole Celery worker is killed with the callback that it runs, and nothing of it is left to tell.

The other workers show that nobody runs it any more: it is lost, its slot is free, and it is never run again.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

from dispatcher.backends.celery import claimants
from dispatcher.dispatch import abandonment, tour
from dispatcher.domain.lifecycle import LaunchState
from tests.support import gate
from tests.support import service_dispatching as run
from tests.support.celery_worker import PLAIN, CeleryWorker
from tests.support.dispatching import launch_of, loop, queue_callback

pytestmark = [pytest.mark.needs("redis"), pytest.mark.slow, pytest.mark.timeout(400)]

CALLBACK = f"{gate.__name__}.pass_through"
QUEUE = "doomed"
LOOKS = 4


@pytest.fixture
def impatient(configured):
    """Look often, and believe soon; executors that are started from now on do."""
    configured.setattr(claimants, "LOOK_INTERVAL", 0.5)
    configured.setattr(abandonment, "LEAST_AGE", timedelta(0))
    configured.setattr(tour, "SWEEP_INTERVAL", 0.2)
    configured.setattr(tour, "LONGEST_INTERVAL", 0.2)
    configured.setenv("AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT", "1")
    configured.setenv("AIRFLOW__DISPATCHER__CALLBACK_QUEUE", QUEUE)


@pytest.fixture
def doomed(broker, server, tmp_path):
    command = [*PLAIN[:-1], QUEUE, "-n", "doomed@%h", "--skip-serve-logs"]
    with CeleryWorker(command, broker, server, tmp_path) as worker:
        yield worker
        # Redis keeps what a killed worker held for a day: other tests wait until nothing is held any more.
        with worker.app.connection_for_read() as connection:
            connection.default_channel.client.delete("unacked", "unacked_index")


def test_it_is_lost_and_its_slot_is_free(impatient, executor, worker, doomed, airflow_home, monkeypatch):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    queue_callback(executor, callback_id)
    loop(executor)
    (launch,) = run.launches_of(callback_id)
    told = run.drive(executor, lambda: launch_of(launch.token).state is LaunchState.CLAIMED, "it is claimed")

    looks = []
    ask = executor.backends[launch.backend]._held_by_workers
    counted = executor.backends[launch.backend]._claimants
    monkeypatch.setattr(counted, "_ask", lambda tokens: looks.append(ask(tokens)) or looks[-1])
    told += run.drive(executor, lambda: len(looks) >= LOOKS, "the workers are asked who runs it")
    assert set(looks) <= {frozenset({launch.token}), None}
    assert launch_of(launch.token).state is LaunchState.CLAIMED

    os.killpg(doomed.process.pid, signal.SIGKILL)
    told += run.drive(executor, lambda: executor.slots_occupied == 0, "its slot is free")
    told += loop(executor).items()

    ((key, (state, info)),) = dict(told).items()
    assert (key.id, state) == (str(callback_id), "failed")
    assert info.startswith("outcome unknown: a worker on ")
    assert info.endswith("and told no result; no Celery worker has run it for 1 s")
    assert [one.state for one in run.launches_of(callback_id)] == [LaunchState.LOST]
