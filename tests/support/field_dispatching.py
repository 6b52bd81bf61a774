# SPDX-License-Identifier: Apache-2.0
"""A HybridExecutor over the Kubernetes backend of a field, where the test plays the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.jobs.job import Job
from airflow.utils.session import create_session
from sqlalchemy import update

from dispatcher.backends.memory import MemoryBackend
from dispatcher.domain.lifecycle import BackendName
from dispatcher.executor import HybridExecutor
from dispatcher.ledger import store
from tests.support import rows
from tests.support.backend_harness import eventually
from tests.support.dispatching import claim, launch_of, queue_task, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dispatcher.backends.base import Backend
    from dispatcher.domain.launch import Launch
    from dispatcher.settings import Settings
    from tests.support.kubernetes_field import KubernetesField

KUBERNETES_QUEUE = "kubernetes"


class FieldExecutor(HybridExecutor):
    """The executor as shipped, with pods in the namespace of a field, and every event that Airflow was told.

    :param field: the namespace and its kubelet
    :param job_id: of its scheduler
    :param parallelism: its slots
    :param backend: arguments of ``KubernetesField.backend``
    """

    def __init__(
        self, field: KubernetesField, job_id: int, backend: Mapping[str, Any], parallelism: int = 32
    ) -> None:
        super().__init__(parallelism=parallelism)
        self.field = field
        self.job_id = job_id
        self.told: list[tuple[Any, Any, Any]] = []
        self.celery = MemoryBackend(BackendName.CELERY)
        self.pods = field.backend(job=None, **backend)

    def _make_backends(self, _settings: Settings) -> Mapping[BackendName, Backend]:
        return {BackendName.CELERY: self.celery, BackendName.KUBERNETES: self.pods}

    def drive(self, until: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        """Run the scheduler's loop until something is so, and return what that was.

        :param until: asked after each turn
        :param what: named in the failure
        """

        def turn() -> Any:
            self.told += told(self)
            return until()

        return eventually(turn, f"{what}; Airflow was told {self.told}", seconds)

    def pod_of(self, token: str) -> str:
        """Run the scheduler's loop until a launch has its pod, and return the pod's name."""
        self.drive(lambda: launch_of(token).external_id, f"the pod of {token} is made")
        return self.field.kubelet.name_of(token)

    def log_of(self, task_id: str) -> list[tuple[str, str]]:
        """Return the event log of a task: what happened, and why."""
        return [(one.event, one.extra) for one in self._task_event_logs if one.task_id == task_id]


def started_executor(field: KubernetesField, parallelism: int = 32, **backend: Any) -> FieldExecutor:
    """Return a started executor with a scheduler job of its own; the field ends its threads.

    :param field: the namespace and its kubelet
    :param parallelism: its slots
    :param backend: arguments of ``KubernetesField.backend``
    """
    with create_session(scoped=False) as session:
        job_id = rows.make_scheduler_job(session).id
    executor = FieldExecutor(field, job_id, backend, parallelism)
    executor.start()
    return executor


def launches_of(subject_id: str) -> list[Launch]:
    """Return the launches of a task instance or callback, the oldest first."""
    with create_session(scoped=False) as session:
        launches = store.recent(session.connection(), limit=100)
    return [launch for launch in reversed(launches) if launch.subject_id == subject_id]


def launch_pod(executor: FieldExecutor, **columns: Any) -> str:
    """Queue a task and run the scheduler's loop until its pod is there; return the token."""
    token = queue_task(executor, queue=KUBERNETES_QUEUE, **columns)
    executor.pod_of(token)
    return token


def start_and_claim(field: KubernetesField, token: str) -> None:
    """Let the pod of a launch start and win its claim."""
    (pod,) = field.kubelet.pods(token)
    field.kubelet.set_status(pod.metadata.name, phase="Running")
    assert claim(token, f"nonce:{pod.metadata.uid}/1")


def launches(*tokens: str) -> list[Launch]:
    """Read the ledger rows of tokens, in their order."""
    with create_session(scoped=False) as session:
        found = store.by_tokens(session.connection(), tokens)
    return [found[token] for token in tokens]


def settled(*tokens: str) -> bool:
    """Whether all of these launches have ended, and Airflow has taken that up."""
    return all(launch.settled_at is not None for launch in launches(*tokens))


def declare_dead(executor: FieldExecutor) -> None:
    """Do as other schedulers do when a scheduler missed its heartbeats: it may go on all the same."""
    with create_session(scoped=False) as session:
        session.execute(update(Job).where(Job.id == executor.job_id).values(state="failed"))


def crash(executor: FieldExecutor) -> None:
    """Let a scheduler die, with whatever it had in hand."""
    executor.end()
    declare_dead(executor)


def orphan_check(executor: FieldExecutor) -> int:
    """Run Airflow's own look for what dead schedulers left; return how many tasks it resets."""
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    with create_session(scoped=False) as session:
        runner = SchedulerJobRunner(job=session.get(Job, executor.job_id), executors=[executor])
        return int(runner.adopt_or_reset_orphaned_tasks(session=session))


def current_token(subject_id: str) -> str:
    """Return the token of the newest launch of a task instance or callback."""
    return launches_of(subject_id)[-1].token
