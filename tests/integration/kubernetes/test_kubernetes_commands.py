# SPDX-License-Identifier: Apache-2.0
"""``airflow kubernetes`` with this executor configured: the commands of the Kubernetes provider."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
import yaml
from airflow.jobs.job import Job
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session

from dispatcher.backends.base import Artefact, Sent
from dispatcher.domain.workload import WorkloadKind
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support.backend_harness import eventually, make_submission, submit
from tests.support.commands import run_airflow_commands

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs("kubernetes")

DAG = """
from airflow.sdk import DAG, BaseOperator
from kubernetes.client import models as k8s

with DAG("commands", schedule=None):
    container = k8s.V1Container(name="base", image="own:1")
    override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container]))
    BaseOperator(task_id="plain")
    BaseOperator(task_id="own", executor_config={"pod_override": override})
"""


@pytest.mark.slow
def test_pods_are_cleaned_up_and_rendered(field, airflow_db, airflow_home, tmp_path):
    kinds = {
        "well": WorkloadKind.TASK,
        "badly": WorkloadKind.TASK,
        "runs": WorkloadKind.TASK,
        "callback": WorkloadKind.CALLBACK,
    }
    backend = field.backend()
    submissions = {what: make_submission(kind, dag_id="commands") for what, kind in kinds.items()}
    sent = submit(backend, *submissions.values())
    names = {}
    for what, submission in submissions.items():
        result = sent[submission.token]
        assert isinstance(result, Sent)
        names[what] = result.external_id.partition("/")[2]
    # It restarts while they end: nobody sees it.
    backend.stop()
    for what, code in (("well", 0), ("badly", 1), ("callback", 0)):
        field.kubelet.end(names[what], code)
    field.kubelet.set_status(names["runs"], phase="Running")

    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "commands.py").write_text(DAG, encoding="utf-8")
    ran = run_airflow_commands(
        f"kubernetes cleanup-pods --namespace {field.namespace} --min-completed-minutes 0",
        f"kubernetes generate-dag-yaml commands --logical-date 2026-01-01T00:00:00 --output-path {tmp_path}",
        home=airflow_home,
        env=environment(field, dags),
    )
    assert ran.returncode == 0, ran.stderr
    left = {pod.metadata.name for pod in field.kubelet.pods()}
    assert left == {names["runs"], names["callback"]}
    rendered = {path.name: yaml.safe_load(path.read_text()) for path in tmp_path.rglob("commands_*.yml")}
    images = {pod["metadata"]["labels"]["task_id"]: image_of(pod) for pod in rendered.values()}
    assert images == {"plain": "none.invalid/none:none", "own": "own:1"}

    # What was cleaned up before its ending was seen is told as gone, never as a success and never again.
    again = field.backend(job="2")
    again.watch(
        [
            Artefact(one.token, one.kind, f"{field.namespace}/{names[what]}")
            for what, one in submissions.items()
        ]
    )
    told = {}

    def all_told():
        told.update({one.token: (one.ok, one.gone) for one in again.observe()})
        return len(told) == 3

    eventually(all_told, "all endings")
    assert told == {
        submissions["well"].token: (False, True),
        submissions["badly"].token: (False, True),
        submissions["callback"].token: (True, False),
    }
    assert len(field.kubelet.pods()) == 2


def test_an_ending_that_is_seen_is_kept_though_the_pod_is_cleaned_up(field):
    """The last that a watch shows of a deleted pod is how it ended."""
    backend = field.backend()
    submission = make_submission()
    submit(backend, submission)
    name = field.kubelet.name_of(submission.token)
    field.kubelet.end(name, 0)
    field.kubelet.delete(name)
    (told,) = eventually(backend.observe, "the ending")
    assert (told.ok, told.gone) == (True, False)


def test_nothing_is_lost_or_run_twice_if_ended_pods_are_cleaned_up_between_two_schedulers(field, airflow_db):
    first = on.started_executor(field)
    tokens = {
        task: run.queue_task(first, task_id=task, queue=on.KUBERNETES_QUEUE) for task in ("done", "lost")
    }
    subjects = {task: run.launch_of(token).subject_id for task, token in tokens.items()}
    pods = {task: first.pod_of(token) for task, token in tokens.items()}
    (pod,) = field.kubelet.pods(tokens["done"])
    assert run.claim(tokens["done"], f"nonce:{pod.metadata.uid}/start")
    run.set_task(tokens["done"], state="success")
    first.end()
    with create_session(scoped=False) as session:
        session.get(Job, first.job_id).state = "failed"
    for name in pods.values():
        field.kubelet.end(name, 0)
        field.kubelet.delete(name)

    second = on.started_executor(field)
    with create_session(scoped=False) as session:
        instance = session.get(TaskInstance, UUID(subjects["lost"]))
        assert second.try_adopt_task_instances([instance]) == []
    second.drive(lambda: run.launch_of(tokens["done"]).settled_at, "the launch that was done is settled")
    second.drive(lambda: len(field.kubelet.pods()) == 1, "what never ran has a pod again")
    assert second.pod_of(on.current_token(subjects["lost"])) != pods["done"]
    assert run.claim(on.current_token(subjects["lost"]))
    assert second.told == []
    assert len(on.launches_of(subjects["done"])) == 1
    assert len(field.kubelet.pods()) == 1


def image_of(pod):
    return pod["spec"]["containers"][0]["image"]


def environment(field, dags: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW__")}
    return {
        **kept,
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": field.kubeconfig,
        "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": field.namespace,
        "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(field.template),
    }
