# SPDX-License-Identifier: Apache-2.0
"""``airflow dispatcher handover``, and what Airflow's own KubernetesExecutor then takes over."""

from __future__ import annotations

import os
from typing import Any

import pytest
from airflow.executors.executor_utils import ExecutorName
from airflow.models.callback import Callback
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support import rows

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]

STOCK_PATH = "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor"


@pytest.fixture
def command(field, monkeypatch, capsys):
    """Return a function that runs the command in this process and returns what it said."""
    from airflow.cli.cli_parser import get_parser

    values = {
        "KUBERNETES_EXECUTOR__NAMESPACE": field.namespace,
        "KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "KUBERNETES_EXECUTOR__CONFIG_FILE": os.environ["KUBECONFIG"],
        "DISPATCHER__DEPLOYMENT": field.namespace,
    }
    for key, value in values.items():
        monkeypatch.setenv(f"AIRFLOW__{key}", value)

    def command(*arguments: str) -> str:
        parsed = get_parser().parse_args(["dispatcher", "handover", *arguments])
        capsys.readouterr()
        parsed.func(parsed)
        return capsys.readouterr().out

    return command


def stock_executor(field) -> Any:
    """Return the stock executor as its scheduler has it in the look for orphans; nothing is started."""
    from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor

    with create_session(scoped=False) as session:
        job_id = rows.make_scheduler_job(session).id
    executor = KubernetesExecutor()
    executor.name = ExecutorName(module_path=STOCK_PATH, alias="KubernetesExecutor")
    executor.job_id = job_id
    executor.scheduler_job_id = str(job_id)
    executor.kube_client = field.api
    return executor


def labels_of(field, token: str) -> dict[str, str]:
    (pod,) = field.kubelet.pods(token)
    return pod.metadata.labels


def task_of(task_id: str) -> Any:
    columns = (TaskInstance.id, TaskInstance.state, TaskInstance.executor, TaskInstance.external_executor_id)
    with create_session(scoped=False) as session:
        return session.execute(select(*columns).where(TaskInstance.task_id == task_id)).one()


def pending_and_running(field) -> tuple[str, str]:
    """Let a scheduler of ours die with a pod that waits and one that runs."""
    ours = on.started_executor(field)
    pending, running = (on.launch_pod(ours, task_id=name) for name in ("pending", "running"))
    on.start_and_claim(field, running)
    on.crash(ours)
    return pending, running


def test_without_it_the_stock_executor_resets_what_runs(field, command):
    pending_and_running(field)
    assert on.orphan_check(stock_executor(field)) == 2


def test_pods_that_wait_and_run_are_adopted(field, command):
    tokens = pending_and_running(field)
    before = {name: task_of(name) for name in ("pending", "running")}

    said = command()
    stock = stock_executor(field)
    assert on.orphan_check(stock) == 0

    assert "2 tasks in pods go to KubernetesExecutor; 2 of their pods were labelled now" in said
    assert len(stock.running) == 2
    for token in tokens:
        labels = labels_of(field, token)
        assert labels["airflow-worker"] == str(stock.job_id)
        assert labels["airflow-executor"] == "hybrid-dispatcher", "we know it again when we come back"
    for name, old in before.items():
        new = task_of(name)
        assert (new.id, new.state, new.external_executor_id) == (old.id, old.state, old.external_executor_id)
        assert new.executor == "KubernetesExecutor"
    # The pod that waits can still claim, once.
    assert run.claim(tokens[0])
    assert not run.claim(tokens[0], "nonce:two")


def test_where_the_stock_kubernetes_executor_is_the_default_one_no_task_names_it(field, command):
    pending_and_running(field)
    command("--default", "kubernetes")
    assert on.orphan_check(stock_executor(field)) == 0
    assert task_of("running").executor is None


def test_a_dispatcher_that_comes_back_takes_all_over_again(field, command):
    pending, running = pending_and_running(field)
    command("--default", "kubernetes")
    stock = stock_executor(field)
    on.orphan_check(stock)
    on.declare_dead(stock)

    ours = on.started_executor(field)
    assert on.orphan_check(ours) == 0
    on.start_and_claim(field, pending)
    for token in (pending, running):
        run.set_task(token, state="success")
        field.kubelet.end(field.kubelet.name_of(token), 0)
    ours.drive(lambda: on.settled(pending, running), "both have settled")
    ours.drive(lambda: field.kubelet.pods() == [], "the pods are removed")
    assert ours.told == []


def test_again_it_changes_nothing(field, command):
    tokens = pending_and_running(field)
    command()

    def versions() -> list[str]:
        return [field.kubelet.pods(token)[0].metadata.resource_version for token in tokens]

    before = versions()
    said = command()
    assert versions() == before
    assert "2 tasks in pods go to KubernetesExecutor; 0 of their pods were labelled now" in said


def test_a_dry_run_changes_nothing(field, command):
    ours = on.started_executor(field)
    issued = run.queue_task(ours, task_id="issued", queue="kubernetes")
    pending, _running = pending_and_running(field)
    on.crash(ours)
    said = command("--dry-run")
    assert "2 tasks in pods" in said
    assert "1 queued tasks are given back" in said
    assert "kubernetes_executor" not in labels_of(field, pending)
    assert run.launch_of(issued).state is LaunchState.ISSUED
    assert (task_of("issued").external_executor_id, task_of("pending").executor) == (issued, None)


def test_a_scheduler_that_is_alive_stops_it(field, command):
    ours = on.started_executor(field)
    token = on.launch_pod(ours, task_id="pending")
    with pytest.raises(SystemExit) as caught:
        command()
    message = str(caught.value.code)
    assert f"job {ours.job_id}" in message
    assert "nothing was done" in message
    assert "--force" in message
    assert "kubernetes_executor" not in labels_of(field, token)

    command("--force")
    assert labels_of(field, token)["kubernetes_executor"] == "True"


def test_what_can_start_no_more_is_given_back(field, command):
    ours = on.started_executor(field)
    failed, gone = (on.launch_pod(ours, task_id=name) for name in ("failed", "gone"))
    issued = run.queue_task(ours, task_id="issued", queue="kubernetes")
    on.crash(ours)
    field.kubelet.end(field.kubelet.name_of(failed), 1)
    field.kubelet.delete(field.kubelet.name_of(gone))

    said = command()

    assert "3 queued tasks were given back" in said
    for token in (failed, gone, issued):
        assert run.launch_of(token).state is LaunchState.DROPPED
        assert not run.claim(token), "it can claim no more"
    assert {task_of(name).external_executor_id for name in ("failed", "gone", "issued")} == {None}
    assert on.orphan_check(stock_executor(field)) == 3
    assert {task_of(name).executor for name in ("failed", "gone", "issued")} == {"KubernetesExecutor"}


def test_a_running_task_without_its_pod_is_left_to_its_heartbeat(field, command):
    _pending, running = pending_and_running(field)
    field.kubelet.delete(field.kubelet.name_of(running))
    said = command()
    assert "left alone: 1 running tasks without a pod" in said
    assert task_of("running").executor is None, "the stock executor would reset it"


def test_ended_pods_are_left_to_the_stock_executor_and_pods_of_callbacks_alone(field, command, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__CALLBACK_BACKEND", "kubernetes")
    ours = on.started_executor(field)
    ended = on.launch_pod(ours, task_id="ended")
    on.start_and_claim(field, ended)
    run.set_task(ended, state="success")
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(ours, callback_id)
    ours.drive(lambda: on.launches_of(str(callback_id))[0].external_id, "the callback has its pod")
    (callback,) = on.launches_of(str(callback_id))
    on.crash(ours)
    field.kubelet.end(field.kubelet.name_of(ended), 0)

    said = command()

    assert "1 ended pods were left to KubernetesExecutor" in said
    assert "left alone: 1 pods of kind callback" in said
    assert "left alone: 1 callbacks that were sent" in said
    assert "kubernetes_executor" not in labels_of(field, callback.token)
    stock = stock_executor(field)
    assert stock.try_adopt_task_instances([]) == []
    assert [name for _namespace, name in stock.completed] == [field.kubelet.name_of(ended)]


def test_a_callback_that_was_not_sent_is_pending_again(field, command):
    ours = on.started_executor(field)
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(ours, callback_id)
    on.crash(ours)

    assert "1 callbacks were given back" in command()

    (launch,) = on.launches_of(str(callback_id))
    assert launch.state is LaunchState.DROPPED
    with create_session(scoped=False) as session:
        assert str(session.get(Callback, callback_id).state) == "pending"


def test_tasks_that_are_not_queued_yet_name_the_executor_of_their_queue(field, command):
    with create_session(scoped=False) as session:
        for name, columns in {
            "new": {"state": None, "queue": "kubernetes"},
            "deferred": {"state": "deferred", "queue": "kubernetes"},
            "ours": {"state": "scheduled", "executor": "HybridExecutor"},
            "celery": {"state": "scheduled"},
            "other": {"state": "scheduled", "queue": "kubernetes", "executor": "LocalExecutor"},
            "finished": {"state": "success", "queue": "kubernetes"},
        }.items():
            rows.make_task_instance(session, task_id=name, token=None, **columns)

    said = command()

    assert "3 tasks that are not queued yet name another executor now" in said
    named = {
        name: task_of(name).executor for name in ("new", "deferred", "ours", "celery", "other", "finished")
    }
    assert named == {
        "new": "KubernetesExecutor",
        "deferred": "KubernetesExecutor",
        "ours": None,
        "celery": None,
        "other": "LocalExecutor",
        "finished": None,
    }


def test_a_cluster_that_is_away_is_told_before_anything_is_done(field, command, monkeypatch, tmp_path):
    pending_and_running(field)
    nowhere = tmp_path / "nowhere.yaml"
    cluster = "{name: c, cluster: {server: 'http://127.0.0.1:1'}}"
    context = "{name: c, context: {cluster: c, user: u}}"
    nowhere.write_text(
        f"{{apiVersion: v1, kind: Config, clusters: [{cluster}], users: [{{name: u, user: {{}}}}], "
        f"contexts: [{context}], current-context: c}}"
    )
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(nowhere))
    with pytest.raises(SystemExit) as caught:
        command()
    assert "cannot be reached" in str(caught.value.code)
    assert task_of("running").executor is None


def test_the_stock_executor_of_airflow_3_4_knows_tasks_by_this_annotation():
    from airflow.providers.cncf.kubernetes.executors import kubernetes_executor_types

    from dispatcher.backends.kubernetes.handover import TASK_INSTANCE

    assert getattr(kubernetes_executor_types, "TASK_INSTANCE_ID_ANNOTATION", TASK_INSTANCE) == TASK_INSTANCE
