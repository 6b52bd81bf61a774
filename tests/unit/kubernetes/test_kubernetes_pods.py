# SPDX-License-Identifier: Apache-2.0
"""Building pods."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kubernetes.client import models as k8s

from dispatcher.backends.kubernetes.identity import Owner
from dispatcher.backends.kubernetes.options import ClusterOptions
from dispatcher.backends.kubernetes.pods import ARGS_LIMIT, BuiltPod, PodBuilder
from dispatcher.domain.errors import ConfigurationError, PermanentError
from dispatcher.domain.workload import WorkloadKind
from dispatcher.settings import WorkloadDelivery
from tests.support import mutation_hook as hooks
from tests.support.backend_harness import make_submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TEMPLATE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "placeholder", "labels": {"tier": "airflow", "kubernetes_executor": "True"}},
    "spec": {
        "restartPolicy": "Always",
        "serviceAccountName": "worker",
        "volumes": [{"name": "logs", "emptyDir": {}}],
        "containers": [
            {
                "name": "base",
                "image": "template:1",
                "command": ["/entrypoint"],
                "env": [{"name": "FOO", "value": "template"}],
                "volumeMounts": [{"name": "logs", "mountPath": "/logs"}],
            },
            {"name": "sidecar", "image": "sidecar:1"},
        ],
    },
}


def write(path: Path, pod: Any) -> str:
    path.write_text(pod if isinstance(pod, str) else yaml.safe_dump(pod), encoding="utf-8")
    return str(path)


@pytest.fixture
def template(tmp_path: Path) -> str:
    return write(tmp_path / "template.yaml", TEMPLATE)


def builder(delivery: WorkloadDelivery = WorkloadDelivery.ARGS, **options: Any) -> PodBuilder:
    chosen = {"namespace": "airflow", "scopes": ("airflow",), "image": "airflow:3", **options}
    return PodBuilder(ClusterOptions(**chosen), Owner("7", "deployment"), delivery)


def override(**spec: Any) -> dict[str, Any]:
    return {"pod_override": k8s.V1Pod(spec=k8s.V1PodSpec(**{"containers": [], **spec}))}


def base_of(pod: BuiltPod) -> dict[str, Any]:
    container: dict[str, Any] = pod.body["spec"]["containers"][0]
    return container


def env_of(pod: BuiltPod) -> dict[str, Any]:
    return {variable["name"]: variable for variable in base_of(pod)["env"]}


@pytest.fixture
def mutation_hook() -> Iterator[Callable[[Callable[[Any], None]], None]]:
    """Yield a function that registers a ``pod_mutation_hook`` for the rest of the test."""
    with ExitStack() as registered:

        def register(hook: Callable[[Any], None]) -> None:
            registered.enter_context(hooks.mutation_hook(hook))

        yield register


def test_a_pod_without_a_template():
    submission = make_submission()
    pod = builder().build(submission)
    assert pod.external_id == f"airflow/contract-task-{submission.token}"
    assert pod.secret is None
    assert pod.body["apiVersion"] == "v1"
    assert pod.body["kind"] == "Pod"
    assert pod.body["metadata"]["name"] == pod.name
    assert pod.body["metadata"]["namespace"] == "airflow"
    assert pod.body["metadata"]["labels"]["airflow-worker"] == "hybrid-7"
    assert pod.body["metadata"]["annotations"]["airflow-launch-token"] == submission.token
    assert pod.body["spec"] == {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "base",
                "image": "airflow:3",
                "args": ["python", "-m", "workers.pod", "--json-string", submission.payload],
                "env": [
                    {"name": "AIRFLOW_IS_K8S_EXECUTOR_POD", "value": "True"},
                    {
                        "name": "AIRFLOW_LAUNCH_POD_UID",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
                    },
                ],
            }
        ],
    }


def test_a_pod_from_a_template(template):
    pod = builder(pod_template_file=template).build(make_submission())
    assert pod.body["spec"]["serviceAccountName"] == "worker"
    assert pod.body["spec"]["restartPolicy"] == "Never"
    assert [one["name"] for one in pod.body["spec"]["containers"]] == ["base", "sidecar"]
    base = base_of(pod)
    assert base["image"] == "airflow:3"
    assert base["command"] == ["/entrypoint"]
    assert base["volumeMounts"] == [{"name": "logs", "mountPath": "/logs"}]
    assert env_of(pod)["FOO"]["value"] == "template"
    assert env_of(pod)["AIRFLOW_IS_K8S_EXECUTOR_POD"]["value"] == "True"
    labels = pod.body["metadata"]["labels"]
    assert labels["tier"] == "airflow"
    assert "kubernetes_executor" not in labels


def test_the_image_of_the_template_is_used_where_no_other_is_set(template):
    assert base_of(builder(image=None, pod_template_file=template).build(make_submission()))["image"] == (
        "template:1"
    )


def test_pods_share_nothing(template):
    pods = builder(pod_template_file=template)
    first = pods.build(make_submission())
    base_of(first)["env"].append("spoiled")
    first.body["metadata"]["labels"]["spoiled"] = "yes"
    second = pods.build(make_submission())
    assert "spoiled" not in base_of(second)["env"]
    assert "spoiled" not in second.body["metadata"]["labels"]


def test_a_changed_template_is_read_again(template, tmp_path):
    pods = builder(pod_template_file=template, image=None)
    pods.build(make_submission())
    changed = {**TEMPLATE, "spec": {"containers": [{"name": "base", "image": "template:2"}]}}
    write(tmp_path / "template.yaml", changed)
    os.utime(tmp_path / "template.yaml", (1, 1))
    assert base_of(pods.build(make_submission()))["image"] == "template:2"


def test_an_override(template):
    wishes = override(
        node_selector={"disk": "ssd"},
        containers=[
            k8s.V1Container(
                name="base",
                image="override:1",
                args=["something", "else"],
                env=[k8s.V1EnvVar(name="BAR", value="override")],
                resources=k8s.V1ResourceRequirements(requests={"memory": "1Gi"}),
            )
        ],
    )
    wishes["pod_override"].metadata = k8s.V1ObjectMeta(labels={"cost": "high"}, annotations={"note": "x"})
    submission = make_submission(executor_config=wishes)
    pod = builder(pod_template_file=template).build(submission)
    assert pod.body["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod.body["metadata"]["labels"]["cost"] == "high"
    assert pod.body["metadata"]["annotations"]["note"] == "x"
    base = base_of(pod)
    assert base["image"] == "override:1"
    assert base["resources"] == {"requests": {"memory": "1Gi"}}
    assert base["args"][-1] == submission.payload
    assert env_of(pod).keys() >= {"FOO", "BAR", "AIRFLOW_IS_K8S_EXECUTOR_POD", "AIRFLOW_LAUNCH_POD_UID"}


def test_an_override_changes_no_other_pod(template):
    pods = builder(pod_template_file=template)
    before = pods.build(make_submission(token="t"))
    pods.build(
        make_submission(
            executor_config=override(
                containers=[k8s.V1Container(name="base", env=[k8s.V1EnvVar(name="BAR", value="x")])]
            )
        )
    )
    assert pods.build(make_submission(token="t")) == before


def test_an_override_cannot_change_what_the_pod_is(template):
    config = override()
    config["pod_override"].metadata = k8s.V1ObjectMeta(
        name="mine",
        generate_name="mine-",
        labels={
            "airflow-launch-token": "other",
            "kubernetes_executor": "True",
            "airflow-launch-done": "True",
        },
        annotations={"airflow-launch-token": "other", "dag_id": "other"},
    )
    submission = make_submission(executor_config=config)
    pod = builder(pod_template_file=template).build(submission)
    metadata = pod.body["metadata"]
    assert metadata["name"] == pod.name
    assert pod.name.endswith(submission.token)
    assert "generateName" not in metadata
    assert metadata["labels"]["airflow-launch-token"] == submission.token
    assert metadata["annotations"]["airflow-launch-token"] == submission.token
    assert metadata["annotations"]["dag_id"] == "contract"
    assert not metadata["labels"].keys() & {"kubernetes_executor", "airflow-launch-done"}


def test_a_template_of_its_own(template, tmp_path):
    own = write(
        tmp_path / "own.yaml",
        {"spec": {"containers": [{"name": "base", "env": [{"name": "A", "value": "b"}]}]}},
    )
    pods = builder(pod_template_file=template)
    pod = pods.build(make_submission(executor_config={"pod_template_file": own}))
    assert "A" in env_of(pod)
    assert "FOO" not in env_of(pod)
    assert "FOO" in env_of(pods.build(make_submission(executor_config={})))


class Unusable:
    def __str__(self) -> str:
        return "line one\nline two"


@pytest.mark.parametrize(
    "config",
    [
        "a string",
        ["a list"],
        3,
        {"pod_override": "not a pod"},
        {"pod_override": {"spec": {}}},
        {"pod_override": k8s.V1PodSpec(containers=[])},
        {"pod_template_file": 3},
        {"pod_template_file": "/no/such/file.yaml"},
        {"KubernetesExecutor": {"image": "x"}},
        override(containers=[k8s.V1Container(name="main", image="x")]),
        override(containers=[k8s.V1Container(name="sidecar"), k8s.V1Container(name="base")]),
        override(volumes="not a list"),
        {"pod_override": k8s.V1Pod(spec="not a spec")},
        {"pod_override": k8s.V1Pod(metadata="not metadata")},
        override(node_selector={"a": Unusable()}),
    ],
)
def test_fault_85_a_bad_executor_config_fails_alone_with_one_line(config, template):
    pods = builder(pod_template_file=template)
    with pytest.raises(PermanentError) as caught:
        pods.build(make_submission(executor_config=config))
    assert str(caught.value).startswith("executor_config")
    assert "\n" not in str(caught.value)
    pods.build(make_submission())


@pytest.mark.parametrize("config", [None, {}, {"other_executor": {}}, override(), {"pod_override": None}])
def test_a_harmless_executor_config(config, template):
    plain = builder(pod_template_file=template).build(make_submission(token="t"))
    assert (
        builder(pod_template_file=template).build(make_submission(token="t", executor_config=config)) == plain
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "just text",
        "[1, 2]",
        "{unclosed",
        {"spec": {}},
        {"spec": {"containers": []}},
        {"metadata": {"name": "x"}},
        {"spec": {"containers": [{"name": "sidecar"}, {"name": "base"}]}},
        {"spec": {"containers": "base"}},
    ],
    ids=repr,
)
def test_a_bad_base_template_is_the_deployments_fault(content, tmp_path):
    path = write(tmp_path / "bad.yaml", content)
    pods = builder(pod_template_file=path)
    for act in (pods.check, lambda: pods.build(make_submission())):
        with pytest.raises(ConfigurationError, match=r"^pod_template_file .*bad\.yaml") as caught:
            act()
        assert "\n" not in str(caught.value)


def test_a_missing_base_template_is_the_deployments_fault(tmp_path):
    pods = builder(pod_template_file=str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        pods.build(make_submission())


def test_a_pod_needs_an_image(template):
    builder().check()
    builder(image=None, pod_template_file=template).check()
    with pytest.raises(ConfigurationError, match="worker_container_repository"):
        builder(image=None).check()


def test_fault_110_no_token_in_the_pod_when_it_travels_by_secret(template):
    pods = builder(WorkloadDelivery.SECRET, pod_template_file=template)
    submission = make_submission(executor_config=override(volumes=[k8s.V1Volume(name="extra")]))
    pod = pods.build(submission)
    assert pod.secret == submission.payload
    assert "jwt-of-" not in repr(pod.body)
    assert "jwt-of-" not in repr(pod)
    base = base_of(pod)
    assert base["args"] == [
        "python",
        "-m",
        "workers.pod",
        "--json-path",
        "/airflow-workload/workload.json",
    ]
    assert base["volumeMounts"] == [
        {"name": "logs", "mountPath": "/logs"},
        {"name": "airflow-workload", "mountPath": "/airflow-workload", "readOnly": True},
    ]
    assert [volume["name"] for volume in pod.body["spec"]["volumes"]] == ["logs", "extra", "airflow-workload"]
    assert pod.body["spec"]["volumes"][-1]["secret"] == {"secretName": pod.name}
    assert "airflow-workload" not in repr(pod.body["spec"]["containers"][1])


@pytest.mark.parametrize(("size", "by_secret"), [(ARGS_LIMIT, False), (ARGS_LIMIT + 1, True)])
def test_fault_87_a_large_workload_travels_by_secret_in_any_case(size, by_secret):
    pod = builder().build(make_submission(payload="x" * size))
    assert (pod.secret is not None) is by_secret


def test_the_size_is_counted_in_bytes():
    assert builder().build(make_submission(payload="é" * (ARGS_LIMIT // 2 + 1))).secret is not None


def test_fault_93_the_namespace_of_an_override_is_used_where_it_is_watched():
    config = override()
    config["pod_override"].metadata = k8s.V1ObjectMeta(namespace="other")
    submission = make_submission(executor_config=config)
    for scopes in (("airflow", "other"), (None,)):
        pod = builder(scopes=scopes).build(submission)
        assert pod.namespace == pod.body["metadata"]["namespace"] == "other"
    with pytest.raises(PermanentError, match="'other' is not watched"):
        builder().build(submission)


def test_the_hook_sees_the_whole_pod_and_changes_it(template, mutation_hook):
    seen: list[Any] = []

    def hook(pod: Any) -> None:
        seen.append((pod.metadata.name, pod.metadata.labels["dag_id"], pod.spec.containers[0].args[-1]))
        pod.spec.containers[0].env.append(k8s.V1EnvVar(name="HOOKED", value="yes"))
        pod.metadata.namespace = "other"

    mutation_hook(hook)
    submission = make_submission()
    pod = builder(pod_template_file=template, scopes=(None,)).build(submission)
    assert seen == [(pod.name, "contract", submission.payload)]
    assert "HOOKED" in env_of(pod)
    assert pod.namespace == "other"


def test_fault_93_a_namespace_that_the_hook_chooses_has_to_be_watched_too(template, mutation_hook):
    def hook(pod: Any) -> None:
        pod.metadata.namespace = "other"

    mutation_hook(hook)
    with pytest.raises(PermanentError, match="'other' is not watched"):
        builder(pod_template_file=template).build(make_submission())


def test_fault_86_the_hook_cannot_change_what_the_pod_is(template, mutation_hook):
    def hook(pod: Any) -> None:
        pod.metadata = k8s.V1ObjectMeta(name="hooked", labels={"kubernetes_executor": "True"})
        pod.spec.restart_policy = "Always"
        pod.spec.containers[0].env = [k8s.V1EnvVar(name="AIRFLOW_LAUNCH_POD_UID", value="of another")]

    mutation_hook(hook)
    submission = make_submission()
    pod = builder(pod_template_file=template).build(submission)
    metadata = pod.body["metadata"]
    assert metadata["name"] == pod.name
    assert pod.namespace == "airflow"
    assert metadata["labels"]["airflow-launch-token"] == submission.token
    assert "kubernetes_executor" not in metadata["labels"]
    assert metadata["annotations"]["airflow-launch-token"] == submission.token
    assert pod.body["spec"]["restartPolicy"] == "Never"
    assert env_of(pod)["AIRFLOW_LAUNCH_POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"


def test_fault_86_a_hook_that_raises_fails_its_pod_alone(template, mutation_hook):
    def hook(pod: Any) -> None:
        if pod.metadata.labels["dag_id"] == "doomed":
            raise RuntimeError("not\nthis one")

    mutation_hook(hook)
    pods = builder(pod_template_file=template)
    with pytest.raises(PermanentError, match=r"^pod_mutation_hook failed: RuntimeError: not this one$"):
        pods.build(make_submission(dag_id="doomed"))
    pods.build(make_submission())


def test_a_hook_that_takes_the_container_away_is_told(template, mutation_hook):
    def hook(pod: Any) -> None:
        pod.spec.containers[0].name = "mine"

    mutation_hook(hook)
    with pytest.raises(PermanentError, match="pod_mutation_hook: the first container"):
        builder(pod_template_file=template).build(make_submission())


@pytest.mark.parametrize("kind", list(WorkloadKind))
def test_every_kind_of_workload_has_a_pod(kind, template):
    submission = make_submission(kind)
    pod = builder(pod_template_file=template).build(submission)
    assert pod.body["metadata"]["labels"]["airflow-workload-type"] == kind.value
    assert base_of(pod)["args"][-1] == submission.payload
