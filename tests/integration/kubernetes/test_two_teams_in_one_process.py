# SPDX-License-Identifier: Apache-2.0
"""The executors of two teams in one scheduler: each has its own queues, broker, results and namespace."""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import timedelta

import pytest
from airflow.providers.celery.executors.celery_executor_utils import create_celery_app
from airflow.utils.session import create_session

from dispatcher.compat import task_key
from dispatcher.domain.lifecycle import BackendName
from tests.support import dispatching as run
from tests.support import rows, services
from tests.support import service_dispatching as on_services
from tests.support.celery_backend import make_conf, messages
from tests.support.kubernetes_field import Kubelet, write_template

pytestmark = [pytest.mark.needs("redis", "kubernetes"), pytest.mark.usefixtures("airflow_db")]


class Team:
    """What one team has for itself."""

    def __init__(self, name: str, stack: ExitStack, folder, monkeypatch) -> None:
        from kubernetes.client import CoreV1Api

        self.name = name
        self.queue = f"{name}-pods"
        self.broker = stack.enter_context(services.claimed_redis_database())
        namespace = stack.enter_context(services.own_namespace())
        client = stack.enter_context(services.kubernetes_client())
        self.kubelet = Kubelet(CoreV1Api(client), namespace)
        for section, key, value in (
            ("celery", "broker_url", self.broker),
            ("celery", "result_backend", self.broker),
            ("kubernetes_executor", "namespace", namespace),
            ("kubernetes_executor", "in_cluster", "False"),
            ("kubernetes_executor", "config_file", os.environ["KUBECONFIG"]),
            ("kubernetes_executor", "pod_template_file", str(write_template(folder / f"{name}.yaml"))),
            ("dispatcher", "kubernetes_queue", self.queue),
        ):
            monkeypatch.setenv(f"AIRFLOW__{name.upper()}___{section.upper()}__{key.upper()}", value)

    def end(self, token: str) -> None:
        """Let the process of a launch on Celery fail."""
        app = create_celery_app(make_conf(self.broker, self.broker))
        app.backend.mark_as_failure(token, RuntimeError("killed"))
        app.close()


@pytest.fixture
def teams(tmp_path, monkeypatch):
    with ExitStack() as stack:
        yield [Team(name, stack, tmp_path, monkeypatch) for name in ("red", "blue")]


def start(teams, job_id: int, stack: ExitStack) -> list:
    """Start the executors of both teams, as one scheduler does."""
    executors = []
    for team in teams:
        executor = on_services.ServiceExecutor(team_name=team.name)
        executor.job_id = job_id
        executor.start()
        stack.callback(executor.end)
        executors.append(executor)
    return executors


def new_job() -> int:
    with create_session(scoped=False) as session:
        return rows.make_scheduler_job(session).id


def test_each_team_sends_and_hears_on_its_own(teams):
    with ExitStack() as stack:
        job_id = new_job()
        executors = start(teams, job_id, stack)
        assert {executor.supports_multi_team for executor in executors} == {True}
        sent = {}
        for team, executor in zip(teams, executors, strict=True):
            for queue in ("default", team.queue):
                name = f"{team.name}-{queue}"
                sent[name] = run.queue_task(executor, task_id=name, queue=queue)
        for team, executor in zip(teams, executors, strict=True):
            pod = sent[f"{team.name}-{team.queue}"]
            on_services.drive(executor, lambda pod=pod: run.launch_of(pod).external_id, "all are sent")
        for team, executor in zip(teams, executors, strict=True):
            own = sent[f"{team.name}-default"], sent[f"{team.name}-{team.queue}"]
            assert [one["headers"]["id"] for one in messages(team.broker)] == [own[0]]
            assert [pod.metadata.name[-36:] for pod in team.kubelet.pods()] == [own[1]]
            assert run.launch_of(own[1]).backend is BackendName.KUBERNETES
            assert executor.slots_occupied == 2

        red, blue = executors
        token = sent["red-default"]
        assert run.claim(token)
        run.set_task(token, last_heartbeat_at=rows.utcnow() - timedelta(hours=1))
        teams[0].end(token)
        told = on_services.drive(red, lambda: run.launch_of(token).ended_at, "red hears of it")
        told += run.loop(red).items()
        assert {key for key, _ in told} == {task_key(run.launch_of(token))}
        assert run.loop(blue) == {}
        assert blue.slots_occupied == 2

        # A scheduler later, each team's executor takes up what is its own.
        on_services.die(red)
        heirs = start(teams, new_job(), stack)
        for heir in heirs:
            on_services.orphan_check(heir)
        for team, heir in zip(teams, heirs, strict=True):
            heir.dispatcher.adopt_soon()
            run.loop(heir)
            flights = {one.launch.team_name for one in heir.dispatcher.in_flight()}
            assert flights == {team.name}
