# SPDX-License-Identifier: Apache-2.0
"""A HybridExecutor over its real backends, driven as the scheduler drives it; see also ``dispatching``.

The executor reads its configuration from the environment, as in a scheduler.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import redis
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.utils.session import create_session
from sqlalchemy import update

from dispatcher.domain.lifecycle import BackendName
from dispatcher.executor import HybridExecutor
from dispatcher.ledger import store
from tests.support import guarded_dag, rows
from tests.support.celery_backend import messages, take_message
from tests.support.dispatching import enqueue, launch_of, loop
from tests.support.workloads import BUNDLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from dispatcher.backends.base import Backend
    from dispatcher.domain.launch import Launch
    from dispatcher.settings import Settings

LOOP_SECONDS = 0.2
"""Pause between two turns of the scheduler's loop."""

END_SECONDS = 90
"""How long a workload may take from its send to its settled end."""

PARKED = "parked"
"""A queue that no worker consumes."""


class ServiceExecutor(HybridExecutor):
    """The executor as shipped; it also shows its backends."""

    backends: Mapping[BackendName, Backend]

    def _make_backends(self, settings: Settings) -> Mapping[BackendName, Backend]:
        self.backends = super()._make_backends(settings)
        return self.backends


@contextmanager
def started_executor() -> Iterator[ServiceExecutor]:
    """Start an executor with a scheduler job of its own; it is ended at the end."""
    executor = ServiceExecutor()
    with create_session(scoped=False) as session:
        executor.job_id = rows.make_scheduler_job(session).id
    executor.start()
    try:
        yield executor
    finally:
        executor.end()


def drive(
    executor: HybridExecutor, until: Callable[[], Any], what: str, seconds: float = END_SECONDS
) -> list[tuple[Any, Any]]:
    """Run the scheduler's loop until something is so, and return every event that Airflow was told.

    :param until: asked after each turn
    :param what: named in the failure
    :raises AssertionError: it was not so in time
    """
    told: list[tuple[Any, Any]] = []
    deadline = time.monotonic() + seconds
    while True:
        told += loop(executor).items()
        if until():
            return told
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; Airflow was told {told}"
        time.sleep(LOOP_SECONDS)


def drive_to_the_end(executor: HybridExecutor, token: str) -> list[tuple[Any, Any]]:
    """Run the scheduler's loop until a launch is settled, and return every event that Airflow was told."""
    return drive(executor, lambda: launch_of(token).settled_at is not None, f"launch {token} is settled")


def die(executor: HybridExecutor) -> None:
    """Let the scheduler of an executor be declared dead."""
    with create_session(scoped=False) as session:
        session.execute(update(Job).where(Job.id == executor.job_id).values(state="failed"))


def orphan_check(executor: HybridExecutor) -> int:
    """Look for the tasks of dead schedulers, as the scheduler does; return how many were reset."""
    with create_session(scoped=False) as session:
        runner = SchedulerJobRunner(job=session.get(Job, executor.job_id), executors=[executor])
        return int(runner.adopt_or_reset_orphaned_tasks(session=session))


def place_dag(home: Path, module: ModuleType, dag_id: str, *task_ids: str) -> None:
    """Put the DAG of a module where workers look for it, and write its rows.

    :param home: Airflow's home
    :param module: its file is the DAG's
    :param task_ids: its tasks, as far as the test runs them
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel

    source = Path(str(module.__file__))
    shutil.copy(source, home / "dags" / source.name)
    with create_session(scoped=False) as session:
        rows.make_dag(session, dag_id, task_ids)
        session.merge(DagBundleModel(name=BUNDLE))
        session.flush()
        model = session.get(DagModel, dag_id)
        model.bundle_name, model.relative_fileloc = BUNDLE, source.name


def task_instance(task_instance_id: UUID | str) -> Any:
    """Read a task instance as it is in the database now; it belongs to no session."""
    from airflow.models.taskinstance import TaskInstance

    with create_session(scoped=False) as session:
        found = session.get(TaskInstance, UUID(str(task_instance_id)))
        session.expunge(found)
        return found


def callback_row(callback_id: UUID | str) -> Any:
    """Read a callback as it is in the database now; it belongs to no session."""
    from airflow.models.callback import Callback

    with create_session(scoped=False) as session:
        found = session.get(Callback, UUID(str(callback_id)))
        session.expunge(found)
        return found


def new_callback(home: Path, path: str) -> UUID:
    """Add a callback that nobody has queued yet, of a DAG that workers find, and return its UUID.

    :param home: Airflow's home
    :param path: import path of the function that it calls
    """
    place_dag(home, guarded_dag, "guarded", "succeed")
    with create_session(scoped=False) as session:
        return rows.make_callback(session, dag_id="guarded", path=path).id


def launches_of(subject_id: UUID | str) -> list[Launch]:
    """Return the launches of a task instance or callback, the oldest first."""
    with create_session(scoped=False) as session:
        launches = store.recent(session.connection(), limit=100)
    return [launch for launch in reversed(launches) if launch.subject_id == str(subject_id)]


def fire_trigger(task_instance_id: UUID | str) -> None:
    """Let the trigger of a deferred task fire, as the triggerer does: the task instance becomes SCHEDULED."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.triggers.base import TriggerEvent

    with create_session(scoped=False) as session:
        trigger_id = session.get(TaskInstance, UUID(str(task_instance_id))).trigger_id
        Trigger.submit_event(trigger_id, TriggerEvent("fired"), session=session)


def queue_again(executor: HybridExecutor, task_instance_id: UUID | str, **columns: Any) -> str:
    """Queue a task instance anew, as the scheduler does: the UUID stays, the token is new. Return the token.

    :param columns: further columns of the task instance
    """
    from airflow.models.taskinstance import TaskInstance

    with create_session(scoped=False) as session:
        instance = session.get(TaskInstance, UUID(str(task_instance_id)), with_for_update=True)
        values = {
            "state": "queued",
            "external_executor_id": str(uuid4()),
            "queued_dttm": rows.utcnow(),
            "queued_by_job_id": executor.job_id,
            **columns,
        }
        for name, value in values.items():
            setattr(instance, name, value)
        session.flush()
        return enqueue(executor, session, instance)


def is_waiting(broker: str, token: str, queue: str = PARKED) -> bool:
    """Return whether the message of a launch is in its queue.

    :param broker: URL of the broker
    :param token: the launch token
    :param queue: where it was sent
    """
    return any(one["headers"]["id"] == token for one in messages(broker, queue))


class HeldMessage:
    """A message taken out of the queue that it was sent to, to be delivered as often as the test likes.

    :param broker: URL of the broker
    :param token: the launch token
    :param queue: where it was sent
    """

    def __init__(self, broker: str, token: str, queue: str = PARKED) -> None:
        waiting = messages(broker, queue)
        (self._message,) = [one for one in waiting if one["headers"]["id"] == token]
        take_message(broker, token, queue)
        self._broker = broker

    def deliver(self, queue: str = "default") -> None:
        """Put it into a queue that a worker consumes."""
        with redis.Redis.from_url(self._broker) as client:
            client.lpush(queue, json.dumps(self._message))

    def replace_jwt(self, token: str) -> None:
        """Give the workload another JWT than the one it was sent with."""
        args, *rest = json.loads(base64.b64decode(self._message["body"]))
        payload = json.dumps({**json.loads(args[0]), "token": token})
        self._message["body"] = base64.b64encode(json.dumps([[payload], *rest]).encode()).decode()

    def deliver_again(self, queue: str = "default") -> None:
        """Put it there as kombu restores a message that was not acknowledged in time."""
        self._message["headers"]["redelivered"] = True
        self._message["properties"]["delivery_info"]["redelivered"] = True
        self.deliver(queue)
