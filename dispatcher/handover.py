# SPDX-License-Identifier: Apache-2.0
"""Hands what is queued and runs over to Airflow's stock executors, while no scheduler runs.

A plan is made from the ledger, the task instances and the pods, and then carried out: first the database, in
one transaction, then the pods. Each step leaves alone what has been done, so all of it may be repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.executors.base_executor import ExecutorConf
from airflow.executors.executor_loader import ExecutorLoader
from airflow.utils.session import create_session

from dispatcher.backends.kubernetes.handover import TIDYING_LABELS, PodHandover, adopting_labels
from dispatcher.domain.handover import HandoverVerdict, executor_names, judge_handover
from dispatcher.domain.lifecycle import BackendName, LaunchKind, LaunchState
from dispatcher.domain.workload import WorkloadKind
from dispatcher.ledger import handover as ledger
from dispatcher.ledger.leftovers import backends_used
from dispatcher.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlalchemy.orm import Session

    from dispatcher.backends.kubernetes.handover import FoundPod
    from dispatcher.domain.launch import Launch

REASON = "handed over to Airflow's stock executors"

OUR_EXECUTOR = "dispatcher.executor.HybridExecutor"


@dataclass(frozen=True, slots=True)
class TaskStep:
    """What is to be done about one launch of a live task instance."""

    launch: Launch
    task: ledger.LiveTask
    verdict: HandoverVerdict


@dataclass(frozen=True, slots=True)
class PodStep:
    """Which labels one pod is to get.

    :param subject_id: the task instance that is to be adopted with it; None for a pod that has succeeded
    """

    where: PodHandover
    pod: FoundPod
    labels: Mapping[str, str]
    subject_id: str | None


@dataclass(slots=True)
class Plan:
    """What is to be done.

    :param unsent_callbacks: launches of callbacks that no heartbeat came to send
    :param left: what stays as it is, in words, with how often
    """

    tasks: list[TaskStep] = field(default_factory=list)
    pods: list[PodStep] = field(default_factory=list)
    unsent_callbacks: list[Launch] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)

    def count(self, verdict: HandoverVerdict, backend: BackendName | None = None) -> int:
        """Return how many launches of a backend, or of all, are judged so."""
        return sum(
            1 for step in self.tasks if step.verdict is verdict and backend in (None, step.launch.backend)
        )


@dataclass(frozen=True, slots=True)
class Done:
    """What was done.

    :param adopted: live task instances that now name the executor that takes them over, by backend
    :param given_back: queued task instances that lost their launch, to be queued anew
    :param callbacks: callbacks that are PENDING again
    :param renamed: task instances that are not queued yet and name another executor now
    :param labelled: pods of live task instances that got the labels
    :param tidied: pods that have succeeded and got the labels
    """

    adopted: Mapping[BackendName, int]
    given_back: int
    callbacks: int
    renamed: int
    labelled: int
    tidied: int


def schedulers_alive(session: Session) -> list[ledger.AliveScheduler]:
    """Return the schedulers that must be stopped first.

    :param session: a session of our own
    """
    threshold = timedelta(seconds=conf.getint("scheduler", "scheduler_health_check_threshold"))
    return ledger.schedulers_with_heartbeat(session.connection(), now=_utcnow(), threshold=threshold)


class Handover:
    """Plans and does the handover; use it as a context manager.

    :param default: whose stock executor is the first in the ``[core] executor`` to come
    """

    def __init__(self, default: BackendName) -> None:
        self._names = executor_names(default)
        self._handovers: list[PodHandover] = []

    def __enter__(self) -> Handover:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for one in self._handovers:
            one.close()

    def plan(self) -> Plan:
        """Look at everything, and change nothing.

        :raises ConfigurationError: a setting cannot be used
        :raises BackendError: the cluster does not answer
        """
        with create_session(scoped=False) as session:
            connection = session.connection()
            launches = ledger.unsettled(connection)
            used, _ = backends_used(connection, after=0)
        used |= {launch.backend for launch in launches}
        teams = sorted({one.team_name for one in launches} | {None}, key=str)
        pods = list(self._pods(teams)) if BackendName.KUBERNETES in used else []
        # Read after the pods: one that ended meanwhile has told so by now.
        with create_session(scoped=False) as session:
            live = ledger.live_tasks(session.connection())
        plan = Plan()
        usable = {pod.identity.token: (where, pod) for where, pod in pods if _is_task(pod) and pod.usable}
        for launch in launches:
            self._plan_launch(plan, launch, live, usable)
        adopted = {step.pod.identity.uid for step in plan.pods}
        for where, pod in pods:
            if pod.identity.uid not in adopted:
                _plan_other_pod(plan, where, pod)
        return plan

    def _plan_launch(
        self,
        plan: Plan,
        launch: Launch,
        live: Mapping[str, ledger.LiveTask],
        usable: Mapping[str, tuple[PodHandover, FoundPod]],
    ) -> None:
        if launch.kind is LaunchKind.CALLBACK:
            if launch.state is LaunchState.ISSUED:
                plan.unsent_callbacks.append(launch)
            elif launch.open:
                plan.left["callbacks that were sent: they run on"] += 1
            return
        task, found = live.get(launch.token), usable.get(launch.token)
        subject = None if task is None else task.subject
        verdict = judge_handover(launch, subject, has_pod=found is not None)
        if verdict is HandoverVerdict.LEAVE or task is None:
            if task is not None:
                plan.left["running tasks without a pod: Airflow fails them by their heartbeat"] += 1
            return
        plan.tasks.append(TaskStep(launch, task, verdict))
        if verdict is HandoverVerdict.ADOPT and launch.backend is BackendName.KUBERNETES and found:
            labels = adopting_labels(task.queued_by or launch.scheduler_job_id or "")
            plan.pods.append(PodStep(*found, labels, task.subject.id))

    def _pods(self, teams: Iterable[str | None]) -> Iterator[tuple[PodHandover, FoundPod]]:
        for team in teams:
            team_conf: Any = conf if team is None else ExecutorConf(team)
            where = PodHandover(team_conf, load(team_conf), team)
            self._handovers.append(where)
            for pod in where.pods():
                yield where, pod

    def carry_out(self, plan: Plan) -> Done:
        """Do what a plan says; what has changed since it was made is left alone.

        :param plan: see ``plan``
        :raises BackendError: a pod could not be labelled; all of it may be repeated
        """
        now = _utcnow()
        with create_session(scoped=False) as session:
            connection = session.connection()
            adopted: Counter[BackendName] = Counter()
            given_back = 0
            for step in plan.tasks:
                name = self._names[step.launch.backend]
                if step.verdict is HandoverVerdict.ADOPT:
                    adopted[step.launch.backend] += ledger.name_executor(connection, step.task, name)
                else:
                    given_back += ledger.give_back(
                        connection, step.launch, step.task, name, now=now, reason=REASON
                    )
            callbacks = sum(
                ledger.give_back_callback(connection, launch, now=now, reason=REASON)
                for launch in plan.unsent_callbacks
            )
            renamed = ledger.name_executor_of_the_rest(
                connection, self._names, kubernetes_queue=load(conf).kubernetes_queue, own=_own_names()
            )
        labelled = [step.where.label(step.pod, step.labels, step.subject_id) for step in plan.pods]
        live = [step.subject_id is not None for step in plan.pods]
        return Done(
            adopted=adopted,
            given_back=given_back,
            callbacks=callbacks,
            renamed=renamed,
            labelled=sum(did and one for did, one in zip(labelled, live, strict=True)),
            tidied=sum(did and not one for did, one in zip(labelled, live, strict=True)),
        )


def _plan_other_pod(plan: Plan, where: PodHandover, pod: FoundPod) -> None:
    """Plan for a pod without a live task instance, which the stock executor can at most remove."""
    if not _is_task(pod):
        plan.left[
            f"pods of kind {pod.identity.kind.value}: the stock KubernetesExecutor cannot read them"
        ] += 1
    elif pod.succeeded:
        plan.pods.append(PodStep(where, pod, TIDYING_LABELS, None))
    else:
        what = "that still run, of launches that are over" if pod.usable else "that failed"
        plan.left[f"pods {what}: `airflow kubernetes cleanup-pods` removes them once they have ended"] += 1


def _is_task(pod: FoundPod) -> bool:
    return pod.identity.kind is WorkloadKind.TASK


def _own_names() -> set[str]:
    """Return the names by which task instances may name our executor, whether it is configured now or not."""
    names = {OUR_EXECUTOR, OUR_EXECUTOR.rpartition(".")[2]}
    for one in ExecutorLoader.get_executor_names(validate_teams=False):
        if one.module_path == OUR_EXECUTOR and one.alias:
            names.add(one.alias)
    return names


def _utcnow() -> datetime:
    return datetime.now(tz=UTC)
