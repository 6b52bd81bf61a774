# SPDX-License-Identifier: Apache-2.0
"""From Airflow's stock executors to ours and all the way back, with 50 tasks in flight at every swap.

Right: every task ends well, no body runs twice, and the last scheduler keeps no slot. Schedulers, executors
(stock and ours), API servers, database, broker and cluster are real; workers and pods play the bodies, which
wait at a gate until the swap is over.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from airflow.jobs.job import Job
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import func, select, update

from tests.chaos.evidence import read_notes
from tests.support.core_scheduler import start_run
from tests.support.played_ground import PlayedGround
from tests.support.players import GATES_VARIABLE, SERVER_VARIABLE
from tests.support.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.needs("redis", "postgres", "kubernetes"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

log = logging.getLogger(__name__)

TASKS = 50
PATIENCE = 150
"""Seconds that each step may take on a busy machine."""

STOCK = "CeleryExecutor,KubernetesExecutor"
OURS = "dispatcher.executor.HybridExecutor"

AT_LEAST_RUNNING = 4
"""How many bodies of each backend have begun before a swap; the other tasks wait in the queue or as pods."""

UNHURRIED = {
    "AIRFLOW__CORE__PARALLELISM": "200",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "600",
    "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "3600",
}
"""Bodies wait at the gate without a heartbeat, and their messages are not to be delivered again meanwhile."""

SETTINGS_OF_SCHEDULER = {
    "stock": {"AIRFLOW__CORE__EXECUTOR": STOCK},
    "stock, pods alone": {"AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor"},
    "ours beside stock": {"AIRFLOW__CORE__EXECUTOR": f"{OURS},KubernetesExecutor"},
    "ours": {"AIRFLOW__CORE__EXECUTOR": OURS},
    "ours, fence required": {"AIRFLOW__CORE__EXECUTOR": OURS, "AIRFLOW__DISPATCHER__FENCE": "required"},
}


class Site:
    """What is there at one time: a scheduler, a worker, the pods, and an API server behind one address.

    :param scheduler: name of the first scheduler's settings
    """

    def __init__(self, ground: PlayedGround, gates: Path, relay: Relay, scheduler: str) -> None:
        self._ground = ground
        self._gates = gates
        self._relay = relay
        self._scheduler = ground.nursery.scheduler(**SETTINGS_OF_SCHEDULER[scheduler])
        self._worker = ground.nursery.worker("default", stock=True)
        self.pods = ground.start_pods()

    def swap_scheduler(self, name: str, between: Callable[[], None] = lambda: None) -> None:
        """Stop the scheduler, and start another one that takes over.

        :param name: of its settings
        :param between: done while there is no scheduler
        """
        self._scheduler.ask_to_end()
        wait_for(lambda: not jobs_running(), "the old scheduler has ended", self._scheduler.tail)
        between()
        self._scheduler = self._ground.nursery.scheduler(**SETTINGS_OF_SCHEDULER[name])
        wait_for(lambda: not orphans(), "the new scheduler has looked for orphans", self._scheduler.tail)

    def swap_worker(self, *, stock: bool) -> None:
        """Start a worker of the other kind, and let the old one finish."""
        old, self._worker = self._worker, self._ground.nursery.worker("default", stock=stock)
        old.ask_to_end()

    def swap_api_server(self, url: str) -> None:
        """Lead new connections to another API server."""
        address = urlsplit(url)
        self._relay.turn_to(str(address.hostname), int(address.port or 0))

    def hand_over(self) -> None:
        """Run ``airflow dispatcher handover``, and again: the second time changes nothing."""
        first = self._command("handover")
        assert self._command("handover", "--dry-run") != first
        again = self._command("handover")
        assert "0 of their pods were labelled now" in again
        assert "0 queued tasks were given back" in again

    def _command(self, *arguments: str) -> str:
        finished = subprocess.run(
            [sys.executable, "-m", "airflow", "dispatcher", *arguments],
            env={**self._ground.env, **SETTINGS_OF_SCHEDULER["ours"]},
            capture_output=True,
            text=True,
            check=False,
        )
        log.info("airflow dispatcher %s\n%s", " ".join(arguments), finished.stdout)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def fly(self, wave: str, *, stock_pods: bool, sides: int = 2) -> None:
        """Start a run, and wait until all of its tasks are in flight.

        :param wave: name of the run
        :param stock_pods: tasks of the queue ``kubernetes`` name the stock executor, as its DAGs do
        :param sides: on how many sides bodies have to run; one where all are in pods
        """
        tasks = [f"task-{n}@{('default', 'kubernetes')[n % 2]}" for n in range(TASKS)]
        start_run(wave, tasks, wave, max_active_tasks=1000)
        if stock_pods:
            name_stock_executor(wave)
        wait_for(lambda: in_flight(wave) == TASKS, f"{wave}: all are in flight", self._scheduler.tail)
        wait_for(lambda: self._running(wave, sides), f"{wave}: bodies run", self._scheduler.tail)

    def _running(self, wave: str, sides: int) -> bool:
        places = Counter(
            body.place.startswith("pod") for body in read_notes(self._ground.notes) if wave in body.subject
        )
        return len(places) == sides and min(places.values()) >= AT_LEAST_RUNNING

    def land(self, wave: str) -> None:
        """Open the gate, and wait until all have ended well."""
        flying = in_flight(wave)
        (self._gates / wave).touch()
        wait_for(lambda: ended(wave), f"{wave}: all have ended", self._scheduler.tail)
        log.info("%s: %d in flight after the swap; tries %s", wave, flying, tries(wave))
        assert states(wave) == {"success": TASKS}
        bodies = Counter(
            body.subject[2]
            for body in read_notes(self._ground.notes)
            if body.subject[0] == wave and body.ended
        )
        began = sum(body.subject[0] == wave for body in read_notes(self._ground.notes))
        assert set(bodies.values()) == {1}
        assert len(bodies) == began == TASKS

    def slots(self) -> int:
        """Return how many slots the scheduler holds."""
        return self._scheduler.slots()


@contextmanager
def opened_site(api_server, folder: Path, scheduler: str) -> Iterator[tuple[Site, str]]:
    """Yield a site, and the URL of its API server.

    :param scheduler: name of the first scheduler's settings
    """
    gates = folder / "gates"
    gates.mkdir()
    server = api_server(with_plugin=True)
    address = urlsplit(server.url)
    with Relay(str(address.hostname), int(address.port or 0)) as relay:
        url = f"http://127.0.0.1:{relay.port}"
        environment = {
            **UNHURRIED,
            GATES_VARIABLE: str(gates),
            SERVER_VARIABLE: url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        }
        with PlayedGround(server, folder, environment) as ground:
            site = Site(ground, gates, relay, scheduler)
            yield site, server.url
    assert site.pods.errors == []


@pytest.fixture(autouse=True)
def _on_postgres(airflow_db, airflow_database):
    if airflow_database != "postgres":
        pytest.skip("needs PostgreSQL as the metadata database")


def test_from_pods_of_the_stock_executor_alone(api_server, tmp_path):
    with opened_site(api_server, tmp_path, "stock, pods alone") as (site, _):
        site.fly("pods", stock_pods=False, sides=1)
        site.swap_scheduler("ours")
        site.land("pods")


def test_there_and_back(api_server, tmp_path):
    required = api_server(with_plugin=True, env={"AIRFLOW__DISPATCHER__FENCE": "required"})
    with opened_site(api_server, tmp_path, "stock") as (site, presented_url):
        site.fly("scheduler", stock_pods=True)
        site.swap_scheduler("ours beside stock")
        site.land("scheduler")

        site.fly("worker", stock_pods=False)
        site.swap_worker(stock=False)
        site.land("worker")

        site.fly("fence", stock_pods=False)
        site.swap_api_server(required.url)
        site.swap_scheduler("ours, fence required")
        site.land("fence")

        site.fly("fence-back", stock_pods=False)
        site.swap_api_server(presented_url)
        site.swap_scheduler("ours")
        site.land("fence-back")

        site.fly("worker-back", stock_pods=False)
        site.swap_worker(stock=True)
        site.land("worker-back")

        site.fly("scheduler-back", stock_pods=False)
        site.swap_scheduler("stock", between=site.hand_over)
        site.land("scheduler-back")

        site.fly("stock", stock_pods=True)
        site.land("stock")
        wait_for(lambda: site.slots() == 0, "no slot is held", lambda: "")


def wait_for(ready: Callable[[], object], what: str, tail: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline, f"not seen: {what}; {task_states()}; the log ends: {tail()}"
        time.sleep(0.2)


def rows_of(statement):
    with create_session(scoped=False) as session:
        return session.execute(statement).all()


def states(wave: str) -> dict[str, int]:
    statement = select(TaskInstance.state, func.count()).where(TaskInstance.dag_id == wave)
    return {str(state): count for state, count in rows_of(statement.group_by(TaskInstance.state))}


def task_states() -> Counter:
    return Counter(
        (dag, str(state)) for dag, state in rows_of(select(TaskInstance.dag_id, TaskInstance.state))
    )


def tries(wave: str) -> Counter:
    return Counter(
        number for (number,) in rows_of(select(TaskInstance.try_number).where(TaskInstance.dag_id == wave))
    )


def in_flight(wave: str) -> int:
    found = states(wave)
    return found.get("queued", 0) + found.get("running", 0)


def ended(wave: str) -> bool:
    return set(states(wave)) <= {"success", "failed"}


def jobs_running() -> list:
    return rows_of(select(Job.id).where(Job.job_type == "SchedulerJob", Job.state == "running"))


def orphans() -> list:
    """Return the task instances in flight that no running scheduler minds."""
    running = [job_id for (job_id,) in jobs_running()]
    live = TaskInstance.state.in_(("queued", "running"))
    return rows_of(select(TaskInstance.id).where(live, TaskInstance.queued_by_job_id.not_in(running)))


def name_stock_executor(wave: str) -> None:
    with create_session(scoped=False) as session:
        named = TaskInstance.dag_id == wave, TaskInstance.queue == "kubernetes"
        session.execute(update(TaskInstance).where(*named).values(executor="KubernetesExecutor"))
