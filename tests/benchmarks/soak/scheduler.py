# SPDX-License-Identifier: Apache-2.0
"""The scheduler of the soak: it queues tasks, takes in events, and gives up what is stuck or has died."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import func, select

from dispatcher.compat import task_instance_key
from tests.support import rows
from tests.support import service_dispatching as run
from tests.support.dispatching import loop, queue_task

if TYPE_CHECKING:
    from dispatcher.executor import HybridExecutor

HEARTBEAT_TIMEOUT = timedelta(seconds=20)
"""After how long without a heartbeat a running task is failed."""

QUEUED_TIMEOUT = timedelta(seconds=180)
"""After how long a queued task is taken for stuck."""

LONG_EVERY = 5
"""One task of so many is a long one."""

DAG_ID = "soaking"


class Scheduler:
    """Does what the scheduler does around one executor.

    :param executor: started
    """

    def __init__(self, executor: HybridExecutor) -> None:
        self._executor = executor
        self._numbers = itertools.count()
        self.counts: Counter[str] = Counter()

    def add_task(self) -> None:
        """Queue one more task."""
        number = next(self._numbers)
        task_id = "short" if number % LONG_EVERY else "long"
        queue_task(self._executor, dag_id=DAG_ID, task_id=task_id, run_id=f"soak_{number}")
        self.counts["tasks"] += 1

    def turn(self) -> None:
        """Run one turn of the loop."""
        for key, (state, _) in loop(self._executor).items():
            self._take_in(key, state)
        self._fail_the_dead()
        self._give_up_the_stuck()

    def unfinished(self) -> int:
        """Return how many tasks have not succeeded."""
        with create_session(scoped=False) as session:
            statement = select(func.count()).select_from(TaskInstance).where(TaskInstance.state != "success")
            return int(session.scalar(statement) or 0)

    def _take_in(self, key: Any, state: str) -> None:
        if state != "failed":
            return
        with create_session(scoped=False) as session:
            underway = session.scalars(
                select(TaskInstance).where(TaskInstance.state.in_(("queued", "running")))
            )
            instance = next((one for one in underway if task_instance_key(one) == key), None)
            if instance is None:
                return
            instance.state = "up_for_retry"
            task_instance_id, try_number = instance.id, instance.try_number
        # The launch is ended before the next try is queued, as a retry delay has it.
        loop(self._executor)
        self.counts["retries"] += 1
        run.queue_again(self._executor, task_instance_id, try_number=try_number + 1)

    def _fail_the_dead(self) -> None:
        limit = rows.utcnow() - HEARTBEAT_TIMEOUT
        with create_session(scoped=False) as session:
            statement = select(TaskInstance).where(
                TaskInstance.state == "running", TaskInstance.last_heartbeat_at < limit
            )
            keys = [task_instance_key(instance) for instance in session.scalars(statement)]
        for key in keys:
            self.counts["heartbeat_timeouts"] += 1
            self._executor.change_state(key, "failed")

    def _give_up_the_stuck(self) -> None:
        limit = rows.utcnow() - QUEUED_TIMEOUT
        again = []
        with create_session(scoped=False) as session:
            statement = select(TaskInstance).where(
                TaskInstance.state == "queued", TaskInstance.queued_dttm < limit
            )
            for instance in session.scalars(statement):
                try:
                    self._executor.revoke_task(ti=instance)
                except NotImplementedError:
                    continue  # a worker claimed it meanwhile
                instance.state = "scheduled"
                again.append(instance.id)
        for task_instance_id in again:
            self.counts["queued_timeouts"] += 1
            run.queue_again(self._executor, task_instance_id)
