# SPDX-License-Identifier: Apache-2.0
"""Which template and image a pod is made of: coordinators, callbacks, and what pods know of the executors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from airflow.sdk.execution_time.coordinator import reset_coordinator_manager
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import models as k8s

from dispatcher.backends.kubernetes.identity import Owner
from dispatcher.backends.kubernetes.options import ClusterOptions
from dispatcher.backends.kubernetes.pods import PodBuilder
from dispatcher.domain.errors import ConfigurationError, PermanentError
from dispatcher.domain.workload import WorkloadKind
from dispatcher.local.cluster.containers import expand
from dispatcher.settings import WorkloadDelivery
from tests.support.backend_harness import make_submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dispatcher.backends.base import Submission

CLASS = "no.such.module.JavaCoordinator"
"""What a coordinator declares is read without loading its class."""


@pytest.fixture
def coordinators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, Any], None]]:
    """Yield a function that sets ``[sdk] coordinators`` and ``queue_to_coordinator``."""

    def configure(coordinators: Any, queues: Any) -> None:
        for key, value in (("COORDINATORS", coordinators), ("QUEUE_TO_COORDINATOR", queues)):
            text = value if isinstance(value, str) else json.dumps(value)
            monkeypatch.setenv(f"AIRFLOW__SDK__{key}", text)
        reset_coordinator_manager()

    yield configure
    monkeypatch.undo()
    reset_coordinator_manager()


@pytest.fixture
def template(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a template whose pods can be told by their service account."""

    def write(name: str, **container: Any) -> str:
        path = tmp_path / f"{name}.yaml"
        spec = {"serviceAccountName": name, "containers": [{"name": "base", "image": "t:1", **container}]}
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": spec}), encoding="utf-8")
        return str(path)

    return write


def builder(callback_template: str | None = None, **options: Any) -> PodBuilder:
    chosen = {"namespace": "airflow", "scopes": ("airflow",), "image": "airflow:3", **options}
    return PodBuilder(
        ClusterOptions(**chosen),
        Owner("7", "deployment"),
        WorkloadDelivery.ARGS,
        callback_template=callback_template,
    )


def task(queue: str = "java", **changes: Any) -> Submission:
    """Return a task of a queue, which a rule sends by another."""
    workload = SimpleNamespace(ti=SimpleNamespace(queue=queue))
    return make_submission(queue="routed", workload=workload, **changes)


def made_of(pods: PodBuilder, submission: Submission) -> tuple[str | None, str | None]:
    """Return the template, by its service account, and the image of a pod."""
    spec = pods.build(submission).body["spec"]
    return spec.get("serviceAccountName"), spec["containers"][0].get("image")


def test_a_coordinators_template_goes_before_any_other(coordinators, template):
    coordinators(
        {"jvm": {"classpath": CLASS, "extra": {"pod_template_file": template("jvm")}}}, {"java": "jvm"}
    )
    pods = builder(pod_template_file=template("base"))
    own = {"pod_template_file": template("own")}
    assert made_of(pods, task()) == ("jvm", "airflow:3")
    assert made_of(pods, task(executor_config=own)) == ("jvm", "airflow:3")
    assert made_of(pods, task("python")) == ("base", "airflow:3")
    assert made_of(pods, task("python", executor_config=own)) == ("own", "airflow:3")


def test_a_coordinators_image_goes_before_the_setting_and_an_override_before_both(coordinators, template):
    extra = {"worker_container_repository": "jre", "worker_container_tag": 21}
    coordinators({"jvm": {"classpath": CLASS, "extra": extra}}, {"java": "jvm"})
    pods = builder(pod_template_file=template("base"))
    container = k8s.V1Container(name="base", image="override:1")
    override = {"pod_override": k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container]))}
    assert made_of(pods, task()) == ("base", "jre:21")
    assert made_of(pods, task(executor_config=override)) == ("base", "override:1")
    assert made_of(pods, task("python")) == ("base", "airflow:3")


@pytest.mark.parametrize("extra", [None, {}, {"worker_container_repository": "jre"}], ids=repr)
def test_a_coordinator_may_leave_pods_as_they_are(extra, coordinators):
    coordinators({"jvm": {"classpath": CLASS, "extra": extra}}, {"java": "jvm"})
    assert made_of(builder(), task()) == (None, "airflow:3")


@pytest.mark.parametrize(
    ("specs", "queues"),
    [
        ("{unclosed", {}),
        ([], {}),
        ({"jvm": {}}, {"java": "jvm"}),
        ({"jvm": "not a mapping"}, {"java": "jvm"}),
        ({}, {"java": "missing"}),
        ({}, ["java"]),
        ({}, {"java": {"a": "mapping"}}),
        ({"jvm": {"classpath": CLASS, "extra": {"pod_template_file": 3}}}, {"java": "jvm"}),
    ],
    ids=["no JSON", "list", "no class", "text", "unknown", "queue list", "odd key", "odd template"],
)
def test_a_malformed_coordinator_is_one_warning(specs, queues, coordinators, caplog):
    coordinators(specs, queues)
    pods = builder()
    for _ in range(2):
        assert made_of(pods, task()) == (None, "airflow:3")
    assert [record.levelname for record in caplog.records if "coordinator" in record.message] == ["WARNING"]


def test_a_coordinators_template_that_is_missing_keeps_its_own_queue_waiting(coordinators):
    coordinators(
        {"jvm": {"classpath": CLASS, "extra": {"pod_template_file": "/no/such.yaml"}}}, {"java": "jvm"}
    )
    pods = builder()
    with pytest.raises(ConfigurationError, match=r"/no/such\.yaml cannot be read"):
        pods.build(task())
    pods.build(task("python"))


def test_callbacks_have_a_template_of_their_own(template):
    pods = builder(template("callback"), pod_template_file=template("base"))
    assert made_of(pods, make_submission(WorkloadKind.CALLBACK)) == ("callback", "airflow:3")
    assert made_of(pods, make_submission()) == ("base", "airflow:3")
    assert made_of(pods, make_submission(WorkloadKind.TEST_CONNECTION)) == ("base", "airflow:3")
    usual = builder(pod_template_file=template("base"))
    assert made_of(usual, make_submission(WorkloadKind.CALLBACK)) == ("base", "airflow:3")


def test_a_missing_template_of_callbacks_is_told_at_start_and_keeps_callbacks_waiting():
    pods = builder("/no/such.yaml")
    for act in (pods.check, lambda: pods.build(make_submission(WorkloadKind.CALLBACK))):
        with pytest.raises(ConfigurationError, match=r"/no/such\.yaml cannot be read"):
            act()
    pods.build(make_submission())


def test_fault_4_a_pod_knows_the_executors_whatever_its_template_says(template):
    executors = "CeleryExecutor,hybrid:dispatcher.executor.HybridExecutor"
    pinned = template("base", env=[{"name": "AIRFLOW__CORE__EXECUTOR", "value": "LocalExecutor"}])
    pods = builder(pod_template_file=pinned, executors=executors)

    def variables(submission: Submission) -> list[str]:
        env = pods.build(submission).body["spec"]["containers"][0]["env"]
        return [one["value"] for one in env if one["name"] == "AIRFLOW__CORE__EXECUTOR"]

    assert variables(make_submission()) == [executors]
    own = k8s.V1EnvVar(name="AIRFLOW__CORE__EXECUTOR", value="mine")
    override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base", env=[own])]))
    # Of two variables of one name, the later one counts.
    assert variables(make_submission(executor_config={"pod_override": override}))[-1] == "mine"


def test_a_namespace_outside_the_list_is_told_at_start():
    with pytest.raises(ConfigurationError, match="'airflow' is not in multi_namespace_mode_namespace_list"):
        builder(scopes=("a", "b")).check()


def test_a_template_is_parsed_once(template):
    path = Path(template("base"))
    pods = builder(pod_template_file=str(path))
    before = pods.build(make_submission(token="t"))
    stat = path.stat()
    path.write_bytes(b"{" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert pods.build(make_submission(token="t")) == before


@given(st.text())
def test_the_payload_arrives_as_it_is_whatever_it_looks_like(text):
    pod = builder().build(make_submission(payload=text))
    argument = pod.body["spec"]["containers"][0]["args"][-1]
    assert expand(argument, {"HOME": "/root", "": "nothing"}) == text


def test_the_payload_is_no_template_of_variables():
    pod = builder().build(make_submission(payload='{"path": "$(HOME)/$$/$x"}'))
    assert pod.body["spec"]["containers"][0]["args"][-1] == '{"path": "$$(HOME)/$$$$/$$x"}'


def test_fault_87_what_no_secret_can_hold_fails_with_its_size():
    limit = 1024 * 1024
    assert builder().build(make_submission(payload="é" * (limit // 2))).secret is not None
    with pytest.raises(PermanentError, match=f"the workload has {limit + 1} bytes"):
        builder().build(make_submission(payload="x" * (limit + 1)))


def test_fault_87_an_override_that_no_cluster_can_store_fails_with_its_size():
    args = [k8s.V1EnvVar(name="BIG", value="x" * 1536 * 1024)]
    override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base", env=args)]))
    with pytest.raises(PermanentError, match=r"^executor_config: pod_override: the pod has 15\d{5} bytes"):
        builder().build(make_submission(executor_config={"pod_override": override}))
