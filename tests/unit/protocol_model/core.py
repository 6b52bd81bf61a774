# SPDX-License-Identifier: Apache-2.0
"""What Airflow's scheduler does with task instances and callbacks, one transaction for each function.

Modelled on the scheduler of Airflow 3.3: process_executor_events, stuck-in-queued, orphans, heartbeats.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tests.unit.protocol_model import oracle
from tests.unit.protocol_model.rows import TaskKey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tests.unit.protocol_model.memory import Emission
    from tests.unit.protocol_model.rows import Key, TaskRow
    from tests.unit.protocol_model.scheduler import Scheduler

QUEUED_TIMEOUT = timedelta(seconds=600)
STUCK_RETRIES = 2
ADOPTABLE = ("queued", "running", "restarting")
WAITING = ("scheduled", "queued", "running", "restarting")


def process_events(scheduler: Scheduler, events: Mapping[Key, Emission]) -> None:
    """Process the executor's events; rows that somebody else has locked are skipped."""
    world = scheduler.world
    for key, emission in events.items():
        if not isinstance(key, TaskKey):
            world.callbacks[key.id].state = emission.state
            continue
        row = world.tasks[key.place]
        if key.place in scheduler.locked_for_it:
            continue
        if emission.state in ("queued", "running"):
            oracle.event_names_launch(row, emission.token)
        if (
            row.try_number == key.try_number
            and row.state in WAITING
            and not _requeued(scheduler, row, emission)
        ):
            oracle.event_applied(world, row, emission)
            _end_by_event(scheduler, row, emission)


def _requeued(scheduler: Scheduler, row: TaskRow, emission: Emission) -> bool:
    resumed = row.state == "scheduled" and emission.state == "success" and row.resumed
    return row.queued_by != scheduler.job_id or scheduler.has_task(row) or resumed


def _end_by_event(scheduler: Scheduler, row: TaskRow, emission: Emission) -> None:
    if row.state == "restarting" and emission.state == "success":
        row.max_tries = row.try_number + 3
        row.state = None
        return
    retry = row.state == "restarting" or row.try_number <= row.max_tries
    if retry and row.state == "running":
        row.id = scheduler.world.new_id("ti")
    row.state = "up_for_retry" if retry else "failed"
    row.resumed = False


def stuck_in_queued(scheduler: Scheduler) -> list[TaskRow]:
    """Find, without locks, the tasks that have been queued for too long."""
    return [
        row
        for row in scheduler.world.tasks.values()
        if row.state == "queued" and row.queued_by == scheduler.job_id and _is_older(scheduler, row.queued_at)
    ]


def _is_older(scheduler: Scheduler, queued_at: datetime | None) -> bool:
    return queued_at is not None and scheduler.world.now - queued_at > QUEUED_TIMEOUT


def without_heartbeat(scheduler: Scheduler) -> list[TaskRow]:
    """Find, without locks, the running tasks whose heartbeat has stood still."""
    world = scheduler.world
    return [
        row
        for row in world.tasks.values()
        if row.state in ("running", "restarting")
        and row.queued_by == scheduler.job_id
        and row.heartbeat_at is not None
        and world.now - row.heartbeat_at > world.heartbeat_timeout
    ]


def check_write(row: TaskRow, by: str) -> None:
    """Check that a write which is not the worker's takes no running task away from it."""
    oracle.written_by_core(row, by)


def requeue_stuck(scheduler: Scheduler, row: TaskRow) -> bool:
    """Queue a stuck task anew after the executor revoked it, or give up on it; returns whether it did."""
    check_write(row, "the handling of stuck tasks")
    if row.times_stuck >= STUCK_RETRIES:
        row.state = "failed"
        return False
    row.times_stuck += 1
    row.state, row.queued_by = "scheduled", None
    return True


def orphans(scheduler: Scheduler) -> list[TaskRow]:
    """Find the tasks whose scheduler was declared dead."""
    world = scheduler.world
    return [
        row
        for row in world.tasks.values()
        if row.state in ADOPTABLE and row.queued_by in world.failed_jobs and row.ours
    ]


def reset(scheduler: Scheduler, row: TaskRow) -> None:
    """Reset an orphan that the executor handed back."""
    check_write(row, "the reset of orphans")
    row.id = scheduler.world.new_id("ti")
    row.state, row.queued_by, row.token = None, None, None
    row.resumed = False
