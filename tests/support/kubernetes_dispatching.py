# SPDX-License-Identifier: Apache-2.0
"""Schedulers whose Kubernetes backend is the real one, on a field where the test plays the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.jobs.job import Job
from airflow.utils.session import create_session
from sqlalchemy import update

from dispatcher.backends.memory import MemoryBackend
from dispatcher.domain.lifecycle import BackendName
from dispatcher.executor import HybridExecutor
from dispatcher.ledger import store
from tests.support import dispatching as run
from tests.support import rows
from tests.support.backend_harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dispatcher.backends.kubernetes.backend import KubernetesBackend
    from dispatcher.domain.launch import Launch
    from dispatcher.settings import Settings
    from tests.support.kubernetes_field import KubernetesField

QUEUE = "kubernetes"
SECONDS = 60.0


class FieldExecutor(HybridExecutor):
    """The executor as shipped, with Celery in memory and its pods on a field.

    :param field: where the pods are
    :param job_id: of its scheduler
    :param options: of ``KubernetesField.backend``
    """

    def __init__(self, field: KubernetesField, job_id: int, parallelism: int, options: Mapping[str, Any]):
        super().__init__(parallelism=parallelism)
        self.job_id = job_id
        self.celery = MemoryBackend(BackendName.CELERY)
        self.pods: KubernetesBackend = field.backend(job=None, **options)

    def _make_backends(self, _settings: Settings) -> Mapping[BackendName, Any]:
        return {BackendName.CELERY: self.celery, BackendName.KUBERNETES: self.pods}


def scheduler(field: KubernetesField, *, parallelism: int = 32, **options: Any) -> FieldExecutor:
    """Return a started executor with a scheduler job of its own.

    :param options: of ``KubernetesField.backend``
    """
    with create_session(scoped=False) as session:
        job_id = rows.make_scheduler_job(session).id
    executor = FieldExecutor(field, job_id, parallelism, options)
    executor.start()
    return executor


def queue(executor: FieldExecutor, **columns: Any) -> str:
    """Queue a task that goes to Kubernetes, and return its token."""
    return run.queue_task(executor, queue=QUEUE, **columns)


def launch_pod(executor: FieldExecutor, **columns: Any) -> str:
    """Queue a task and drive the scheduler until its pod is there; return the token."""
    token = queue(executor, **columns)
    drive(executor, lambda: run.launch_of(token).external_id, f"the pod of {token} is made")
    return token


def claim(field: KubernetesField, token: str) -> None:
    """Let a pod start and win its claim."""
    (pod,) = field.kubelet.pods(token)
    field.kubelet.set_status(pod.metadata.name, phase="Running")
    assert run.claim(token, f"nonce:{pod.metadata.uid}/1")


def drive(
    executor: FieldExecutor, until: Callable[[], Any], what: str, seconds: float = SECONDS
) -> list[tuple[Any, Any]]:
    """Run the scheduler's loop until something is so, and return every event that Airflow was told.

    :param what: named in the failure
    """
    told: list[tuple[Any, Any]] = []

    def turn() -> Any:
        told.extend(run.loop(executor).items())
        return until()

    eventually(turn, what, seconds)
    return told


def settled(*tokens: str) -> bool:
    """Whether the launches have ended, and Airflow has taken that up."""
    return all(launch.settled_at is not None for launch in launches(*tokens))


def launches(*tokens: str) -> list[Launch]:
    """Read the ledger rows of tokens, in their order, in one transaction."""
    with create_session(scoped=False) as session:
        found = store.by_tokens(session.connection(), tokens)
    return [found[token] for token in tokens]


def crash(executor: FieldExecutor) -> None:
    """Let a scheduler die, with whatever it had in hand."""
    executor.end()
    declare_dead(executor)


def declare_dead(executor: FieldExecutor) -> None:
    """Do as other schedulers do whose heartbeat check a scheduler missed: it may go on all the same."""
    with create_session(scoped=False) as session:
        session.execute(update(Job).where(Job.id == executor.job_id).values(state="failed"))


def orphan_check(executor: FieldExecutor) -> int:
    """Run Airflow's own look for what dead schedulers left; return how many tasks it resets."""
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    with create_session(scoped=False) as session:
        runner = SchedulerJobRunner(job=session.get(Job, executor.job_id), executors=[executor])
        return int(runner.adopt_or_reset_orphaned_tasks(session=session))
