# SPDX-License-Identifier: Apache-2.0
"""C7: the broker goes away and comes back. C8: a worker is killed, and one is told to end. Both brokers.

One after the other on the same workers, since they cost most of the time; C2, a message that is delivered
again, is among them for RabbitMQ's sake. Right: the loop and the Kubernetes half go on; nothing is lost and
nothing runs twice, though late acknowledgements make the broker deliver again; workers consume again by
themselves; what a killed worker ran is failed once, what it had only reserved runs elsewhere; one that is
told to end finishes what it has (known fault 20).
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from datetime import timedelta

import pytest

from dispatcher.backends.celery import lookout
from dispatcher.backends.memory import MemoryBackend
from dispatcher.dispatch import search, sweep, tour
from dispatcher.domain.lifecycle import BackendName, LaunchState
from tests.support import gated_dag, guarded_dag, rows
from tests.support import service_dispatching as run
from tests.support.backend_harness import eventually
from tests.support.broker_sites import open_site
from tests.support.dispatching import launch_of, loop, queue_task, set_task
from workers.health import BrokerAwayError, check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

AWAY_SECONDS = 3.0
"""How long the broker is away; a worker tries to connect again after 2 s, 4 s and so on."""

TURN_SECONDS = 15.0
"""How long one turn of the loop may take while the broker is away."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("redis", marks=pytest.mark.needs("redis")),
        pytest.param("rabbitmq", marks=pytest.mark.needs("rabbitmq")),
    ],
)
def site(request):
    with open_site(request.param) as site:
        yield site


@pytest.fixture(scope="module")
def workers(site, server, tmp_path_factory):
    """Yield what starts a worker at the site; the folder with the marks is one."""
    started = []

    def start():
        folder = tmp_path_factory.mktemp("worker")
        worker = site.worker(server, folder)
        started.append(worker)
        return worker.__enter__()

    yield start
    for worker in started:
        worker.__exit__()


@pytest.fixture(scope="module")
def first_worker(workers):
    return workers()


@pytest.fixture
def executor(site, server, airflow_db, airflow_home, monkeypatch):
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", server)
    monkeypatch.setattr(search, "PATIENCE", timedelta(seconds=3))
    monkeypatch.setattr(tour, "SWEEP_INTERVAL", 0.5)
    monkeypatch.setattr(tour, "LONGEST_INTERVAL", 0.5)
    monkeypatch.setattr(sweep, "GRACE", 1.0)
    monkeypatch.setattr(lookout, "LOOK_INTERVAL", 1.0)
    monkeypatch.setattr(lookout, "CONFIRM_INTERVAL", 0.5)
    run.place_dag(airflow_home, gated_dag, "gated", "wait")
    run.place_dag(airflow_home, guarded_dag, "guarded", "succeed")
    with run.started_executor() as executor:
        yield executor


RUNS = itertools.count(1)


def gated(executor, site):
    run_id = f"run_{next(RUNS)}"
    return queue_task(executor, dag_id="gated", task_id="wait", queue=site.queue, run_id=run_id)


def short(executor, site):
    run_id = f"run_{next(RUNS)}"
    return queue_task(executor, dag_id="guarded", task_id="succeed", queue=site.queue, run_id=run_id)


def state_of(token):
    return run.task_instance(launch_of(token).subject_id).state


def is_sent(executor, token):
    """Whether the executor was told that the broker has the message."""
    return any(one.token == token and one.workload is None for one in executor.dispatcher.in_flight())


def health(site, app):
    try:
        return check(app, site.node, timeout=5.0, idle=5.0).healthy
    except BrokerAwayError:
        return False


def test_c7_the_broker_goes_away(site, executor, first_worker, monkeypatch):
    worker = first_worker
    app = site.app()
    running, reserved, queued = gated(executor, site), short(executor, site), short(executor, site)
    run.drive(executor, lambda: worker.take_marks() == ["began"], "the first one runs")
    assert health(site, app), "a busy worker is healthy"

    site.relay.cut()
    away_since = time.monotonic()
    pods = MemoryBackend(BackendName.KUBERNETES)
    # The Kubernetes half needs no cluster to show that its launches go out meanwhile.
    executor.backends[BackendName.KUBERNETES] = pods
    pod, late = queue_task(executor, task_id="pod", queue="kubernetes"), short(executor, site)
    worker.open_gate()
    turns = 0
    while time.monotonic() - away_since < AWAY_SECONDS:
        started = time.monotonic()
        assert loop(executor) == {}
        assert time.monotonic() - started < TURN_SECONDS
        turns += 1
        time.sleep(run.LOOP_SECONDS)
    assert pods.sends == [pod]
    assert turns >= 2
    assert state_of(late) == "queued"
    assert not health(site, app)
    worker.wait_for(lambda: state_of(running) == "success")

    site.relay.restore()
    tokens = [running, reserved, queued, late]
    told = run.drive(
        executor, lambda: all(launch_of(token).settled_at for token in tokens), "everything ended"
    )
    assert [state_of(token) for token in tokens] == ["success"] * len(tokens)
    assert told == [], "each task told its own end"
    assert sorted(worker.take_marks()) == ["ended", "succeed", "succeed", "succeed"], "nothing ran twice"
    assert executor.slots_occupied == 1, "that of the pod"
    assert executor.dispatcher.in_flight()[0].token == pod
    eventually(lambda: health(site, app), "the worker consumes again")
    app.close()


def test_c2_a_message_that_is_delivered_again(site, executor, first_worker):
    """After success; the other cases do not depend on the broker, and have a module of their own."""
    first_worker.take_marks()
    run_id = f"run_{next(RUNS)}"
    token = queue_task(executor, dag_id="guarded", task_id="succeed", queue=site.parked, run_id=run_id)
    run.drive(executor, lambda: site.waiting(site.parked), "it is sent")
    message = site.take_one(site.parked)
    site.deliver(message)
    run.drive_to_the_end(executor, token)
    before = launch_of(token)

    site.deliver(message)
    refused = f"Launch {token} of task {before.subject_id} was refused at the claim (launch_consumed)"
    first_worker.wait_for(lambda: refused in first_worker.log())
    assert loop(executor) == {}
    assert state_of(token) == "success"
    assert launch_of(token) == before
    assert first_worker.state(token) == "PENDING", "no result is stored for it"
    assert first_worker.take_marks() == ["succeed"]


def test_fault_20_c8_a_worker_is_killed_and_another_one_ends(site, executor, first_worker, workers):
    first_worker.close_gate()
    first_worker.take_marks()
    killed, reserved = gated(executor, site), short(executor, site)
    run.drive(executor, lambda: first_worker.take_marks() == ["began"], "it runs")
    eventually(lambda: site.waiting() == 0, "the other one is reserved")
    os.killpg(first_worker.process.pid, signal.SIGKILL)

    # The scheduler's heartbeat time-out, and what it then does.
    set_task(killed, last_heartbeat_at=rows.utcnow() - timedelta(hours=1))
    (key,) = [flight.key for flight in executor.dispatcher.in_flight() if flight.token == killed]
    executor.change_state(key, "failed")
    assert [state for state, _ in executor.get_event_buffer().values()] == ["failed"]
    set_task(killed, state="up_for_retry")
    assert loop(executor) == {}
    assert launch_of(killed).state is LaunchState.FAILED
    assert executor.slots_occupied == 1, "that of the reserved one"

    second = workers()
    subject_id = launch_of(killed).subject_id
    told = run.drive(executor, lambda: state_of(reserved) == "success", "the reserved one runs")
    retry = run.queue_again(executor, subject_id, try_number=2)
    told += run.drive(executor, lambda: second.take_marks()[-1:] == ["began"], "the retry runs")
    last = short(executor, site)
    run.drive(executor, lambda: is_sent(executor, last) and not site.waiting(), "one more is reserved")

    second.process.ask_to_end()
    eventually(lambda: "Warm shutdown" in second.log(), "it heard so")
    second.open_gate()
    second.process.popen.wait(60)
    told += run.drive(executor, lambda: launch_of(retry).settled_at, "the retry ended")
    assert state_of(retry) == "success"
    assert told == []
    ran = second.take_marks()
    if state_of(last) == "success":
        assert ran == ["ended", "succeed"]
    else:
        assert ran == ["ended"]
        run.drive(executor, site.waiting, "it is in its queue again, or was sent again")
        assert {headers["id"] for headers in site.take_all(site.queue)} == {last}
