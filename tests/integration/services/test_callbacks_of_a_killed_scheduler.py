# SPDX-License-Identifier: Apache-2.0
"""A scheduler is killed with 200 callbacks in mixed states, half on Celery and half on Kubernetes.

Right: the next one has all of them in a true terminal state within one orphan check, beside their own run
time; each body has run once.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from airflow.models.callback import Callback
from airflow.utils.session import create_session
from sqlalchemy import func, select

from dispatcher.ledger.models import LaunchRow
from tests.chaos.evidence import read_notes
from tests.support import rows
from tests.support.played_ground import HEALTH_CHECK_SECONDS, ORPHAN_CHECK_SECONDS, PlayedGround

pytestmark = [
    pytest.mark.needs("redis", "postgres", "kubernetes"),
    pytest.mark.usefixtures("several_schedulers"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

log = logging.getLogger(__name__)

EACH = 100
"""Callbacks on each backend."""

SLOTS, PODS_BEFORE = 60, 25
"""Slots of the schedulers, and pods that start before the first one dies: some callbacks are pending then."""

LONG = 3
"""How many on each backend run through the death of their scheduler."""

FAIL_EVERY = 7
WAIT_SECONDS = 180
OPEN_STATES = ("pending", "queued", "running")
PATHS = {"celery": "tests.support.callbacks.note", "kubernetes": "tests.support.callbacks.in_a_pod"}
ROUTES = [{"match": {"callback": "*.in_a_pod"}, "backend": "kubernetes"}]


def add_callbacks(go_on: Path) -> dict[str, dict]:
    """Add the callbacks, the long ones first in line; return their arguments, by UUID.

    :param go_on: the long ones wait until it is there
    """
    arguments = {}
    with create_session(scoped=False) as session:
        for number in range(EACH):
            kwargs: dict = {"until": str(go_on)} if number < LONG else {}
            if number % FAIL_EVERY == FAIL_EVERY - 1:
                kwargs["error"] = f"ValueError: number {number}"
            for path in PATHS.values():
                weight = 100 if number < LONG else 1
                callback = rows.make_callback(session, path=path, kwargs=kwargs, priority_weight=weight)
                arguments[str(callback.id)] = kwargs
    return arguments


def callbacks() -> dict[str, Callback]:
    with create_session(scoped=False) as session:
        found = {str(one.id): one for one in session.scalars(select(Callback))}
        session.expunge_all()
    return found


def launch_states() -> Counter:
    with create_session(scoped=False) as session:
        statement = select(LaunchRow.backend, LaunchRow.state, func.count()).group_by(
            LaunchRow.backend, LaunchRow.state
        )
        return Counter({f"{backend} {state}": count for backend, state, count in session.execute(statement)})


def unsettled(*where) -> int:
    with create_session(scoped=False) as session:
        statement = select(func.count()).select_from(LaunchRow).where(LaunchRow.settled_at.is_(None), *where)
        return int(session.scalar(statement) or 0)


def owner() -> str:
    with create_session(scoped=False) as session:
        (owner,) = session.scalars(select(LaunchRow.scheduler_job_id).distinct())
    return owner


def wait_until(ready, what: str, *processes) -> float:
    """Wait until something is so, and return how many seconds that took."""
    began = time.monotonic()
    while not ready():
        waited = time.monotonic() - began
        assert waited < WAIT_SECONDS, f"not {what}: {launch_states()}; {[one.tail() for one in processes]}"
        time.sleep(0.1)
    return time.monotonic() - began


def test_two_hundred_callbacks_survive_their_scheduler(airflow_db, api_server, tmp_path):
    go_on = tmp_path / "go-on"
    arguments = add_callbacks(go_on)
    server = api_server(with_plugin=True)
    env = {"AIRFLOW__CORE__PARALLELISM": str(SLOTS), "AIRFLOW__DISPATCHER__ROUTES": json.dumps(ROUTES)}
    with PlayedGround(server, tmp_path, env) as ground:
        starts = iter(range(PODS_BEFORE))
        others_go_on = threading.Event()
        pods = ground.start_pods(may_start=lambda: others_go_on.is_set() or next(starts, None) is not None)
        worker = ground.nursery.worker("callbacks")
        first = ground.nursery.scheduler()

        def ended() -> Counter:
            done = [one for one in read_notes(ground.notes) if one.ended is not None]
            return Counter("kubernetes" if one.place.startswith("pod ") else "celery" for one in done)

        wait_until(lambda: min(ended()["celery"], ended()["kubernetes"]) >= 15, "some have ended", first)
        worker.stall()
        first.kill()
        dead = owner()
        before = Counter(one.state for one in callbacks().values())
        launches = launch_states()
        # Pods of callbacks that have not begun are deleted, and one that runs is killed.
        waiting = [one.metadata.name for one in ground.kubelet.pods() if one.status.phase == "Pending"]
        for name in waiting[:3]:
            ground.kubelet.delete(name)
        killed = pods.kill_one(random.Random(0))
        # Others go on while no scheduler runs.
        others_go_on.set()
        worker.go_on()
        so_far = ended().total()
        wait_until(lambda: ended().total() >= so_far + 20, "more have ended")

        second = ground.nursery.scheduler()
        began, began_at = time.monotonic(), time.time()
        wait_until(
            lambda: not unsettled(LaunchRow.scheduler_job_id == dead), "none is the dead one's", second
        )
        adopted = time.monotonic() - began
        go_on.touch()
        wait_until(
            lambda: not any(one.state in OPEN_STATES for one in callbacks().values()), "all ended", second
        )
        seconds = time.monotonic() - began
        wait_until(lambda: unsettled() == 0, "all settled", second)
        held = second.slots()
        bodies = read_notes(ground.notes)
    log.info("killed with callbacks %s and launches %s", dict(before), dict(launches))
    own = max(one.ended for one in bodies if one.ended is not None) - began_at
    log.info(
        "taken over after %.1f s; the last body ended after %.1f s, all are told after %.1f s",
        adopted,
        own,
        seconds,
    )
    assert pods.errors == []
    assert {"pending", "queued", "running", "success", "failed"} <= set(before)
    check_truth(arguments, bodies, killed)
    assert held == 0
    assert adopted < 10 * (HEALTH_CHECK_SECONDS + ORPHAN_CHECK_SECONDS), "on however busy a machine"


def check_truth(arguments, bodies, killed) -> None:
    """Compare what the database says of each callback with what its body did."""
    with create_session(scoped=False) as session:
        subjects = dict(session.execute(select(LaunchRow.token, LaunchRow.subject_id)).all())
    ran = defaultdict(list)
    for body in bodies:
        ran[subjects[body.token]].append(body)
    found = callbacks()
    assert len(found) == 2 * EACH
    for callback_id, kwargs in arguments.items():
        (body,) = ran[callback_id]
        callback = found[callback_id]
        if body.ended is None:
            assert body.place == killed
            assert callback.state == "failed"
            assert callback.output
        else:
            assert callback.state == ("failed" if "error" in kwargs else "success"), callback.output
            assert "error" not in kwargs or kwargs["error"] in callback.output
