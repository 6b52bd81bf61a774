# SPDX-License-Identifier: Apache-2.0
"""B6: two schedulers, one database, both busy; schedulers, workers and pods are killed at random moments.

Right: every task ends, no launch is claimed twice, no body runs twice under one try unless its worker died in
it, and no scheduler keeps a slot. The schedulers are Airflow's own with our executor, and so are the API
server, the broker, the cluster and the Celery workers; only the bodies are played.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time

import pytest
from airflow import settings
from sqlalchemy import text

from dispatcher.compat import AIRFLOW_3_4_PLUS
from dispatcher.dispatch.tour import LONGEST_TOUR
from tests.chaos.evidence import gather, install_audit, rest
from tests.chaos.verdict import judge
from tests.support.core_scheduler import start_run
from tests.support.played_ground import HEALTH_CHECK_SECONDS, ORPHAN_CHECK_SECONDS, PlayedGround

pytestmark = [
    pytest.mark.needs("redis", "postgres", "kubernetes"),
    pytest.mark.usefixtures("several_schedulers"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

log = logging.getLogger(__name__)

SEED = int(os.environ.get("DISPATCHER_TESTS_SEED", "6"))
RUNS, TASKS_PER_RUN = 6, 50
SECONDS = 240
"""How long it may take until everything has come to its end."""

BLOWS = ("scheduler", "worker", "pod", "stall", "pod", "worker", "scheduler")
SLOTS_SECONDS = 2 * LONGEST_TOUR
STALL_SECONDS = HEALTH_CHECK_SECONDS + 2 * ORPHAN_CHECK_SECONDS


@pytest.fixture
def audit(airflow_db):
    """Have the database note each step of each launch."""
    engine = settings.get_engine()
    install_audit(engine)
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE chaos_audit; DROP FUNCTION chaos_note CASCADE"))


class Company:
    """Two schedulers, two workers and the pods, of which some are struck now and then."""

    def __init__(self, ground: PlayedGround, chance: random.Random) -> None:
        self._ground = ground
        self._chance = chance
        self.schedulers = [ground.nursery.scheduler() for _ in range(2)]
        self.workers = [ground.nursery.worker("default", "callbacks") for _ in range(2)]
        self.pods = ground.start_pods()
        self.killed: dict[str, float] = {}
        self.struck: list[str] = []
        self._timers: list[threading.Timer] = []

    def strike(self, blow: str) -> bool:
        """Do one blow; return whether there was anything to strike."""
        struck = getattr(self, f"_{blow}")()
        if struck:
            self.struck.append(blow)
        return bool(struck)

    def _scheduler(self) -> bool:
        number = self._chance.randrange(2)
        self.schedulers[number].kill()
        self.schedulers[number] = self._ground.nursery.scheduler()
        return True

    def _stall(self) -> bool:
        stalled = self._chance.choice(self.schedulers)
        stalled.stall()
        timer = threading.Timer(STALL_SECONDS, stalled.go_on)
        timer.start()
        self._timers.append(timer)
        return True

    def _worker(self) -> bool:
        number = self._chance.randrange(2)
        self.killed[self.workers[number].name] = time.time()
        self.workers[number].kill()
        self.workers[number] = self._ground.nursery.worker("default", "callbacks")
        return True

    def _pod(self) -> bool:
        place = self.pods.kill_one(self._chance)
        if place is not None:
            self.killed[place] = time.time()
        return place is not None

    def slots(self) -> dict[str, int | None]:
        """Return how many slots each scheduler holds, as soon as none does, or after a tour at the latest.

        What a worker or another scheduler ended is found out by the next tour through the launches.
        """
        until = time.monotonic() + SLOTS_SECONDS
        while True:
            held: dict[str, int | None] = {one.name: one.slots() for one in self.schedulers}
            if not any(held.values()) or time.monotonic() > until:
                return held
            time.sleep(1)

    def go_on(self) -> None:
        """Wait until whatever stands still goes on."""
        for timer in self._timers:
            timer.join()


@pytest.mark.skipif(
    AIRFLOW_3_4_PLUS,
    reason="of two schedulers that find the same task without a heartbeat, Airflow 3.4.0b2 ends one",
)
def test_b6_three_hundred_tasks(audit, api_server, tmp_path):
    chance = random.Random(SEED)
    moments = sorted(chance.sample(range(10, RUNS * TASKS_PER_RUN * 3 // 4), len(BLOWS)))
    blows = list(zip(moments, BLOWS, strict=True))
    tasks = [f"task-{n}@{('default', 'kubernetes')[n % 2]}" for n in range(TASKS_PER_RUN)]
    for n in range(RUNS):
        start_run("busy", tasks, f"run-{n}", max_active_tasks=1000)
    server = api_server(with_plugin=True)
    with PlayedGround(server, tmp_path, {"AIRFLOW__CORE__PARALLELISM": "60"}) as ground:
        company = Company(ground, chance)
        deadline = time.monotonic() + SECONDS
        ready = time.monotonic()
        while not (left := rest(audit)).nothing or blows:
            done = left.all_tasks - left.tasks
            while blows and done >= blows[0][0] and company.strike(blows[0][1]):
                blows.pop(0)
            assert time.monotonic() < deadline, f"seed {SEED}: {left}; struck {company.struck}"
            time.sleep(0.2)
        company.go_on()
        evidence = gather(audit, ground.notes)
        evidence.killed = company.killed
        evidence.slots = company.slots()
        seconds = time.monotonic() - ready
    assert company.pods.errors == []
    verdict = judge(evidence)
    log.info(
        "seed %d: %d launches of %d tasks in %.0f s",
        SEED,
        len(evidence.launches),
        RUNS * TASKS_PER_RUN,
        seconds,
    )
    assert list(verdict.findings()) == [], f"seed {SEED}"
    assert company.struck == list(BLOWS)
    assert {task.state for task in evidence.tasks} == {"success"}
    assert len(evidence.tasks) == RUNS * TASKS_PER_RUN
