# SPDX-License-Identifier: Apache-2.0
"""Creating pods on a real API server: what it refuses, and what is there already."""

from __future__ import annotations

import pickle
import socket
import threading
import time

import kubernetes.client as k8s_client
import pytest
from kubernetes.client import models as k8s

from dispatcher.backends.base import Artefact, Postponed, Rejected, Sent
from tests.support import fault_proxy
from tests.support.backend_harness import eventually, make_submission, submit
from tests.support.fault_proxy import kubeconfig_of
from tests.support.kubernetes_field import write_template

pytestmark = pytest.mark.needs("kubernetes")


def submit_one(backend, submission):
    return submit(backend, submission)[submission.token]


def test_the_pod_is_what_was_built(field):
    backend = field.backend(job="42")
    submission = make_submission(map_index=0)
    sent = submit_one(backend, submission)
    (pod,) = field.kubelet.pods()
    assert sent == Sent(f"{field.namespace}/{pod.metadata.name}")
    assert pod.metadata.labels["airflow-worker"] == "hybrid-42"
    assert pod.metadata.labels["airflow-deployment"] == field.namespace
    assert pod.metadata.annotations["map_index"] == "0"
    assert pod.spec.restart_policy == "Never"
    assert pod.spec.containers[0].args[-2:] == ["--json-string", submission.payload]


def test_pods_are_created_in_the_order_of_the_batch(field):
    proxy = field.proxy()
    backend = field.backend(through=proxy, settings={"pod_creation_concurrency": 1})
    batch = [make_submission() for _ in range(3)]
    submit(backend, *batch)
    field.kubelet.pods()
    created = sorted(field.kubelet.pods(), key=lambda pod: int(pod.metadata.resource_version))
    tokens = [pod.metadata.labels["airflow-launch-token"] for pod in created]
    assert tokens == [submission.token for submission in batch]


def test_fault_77_a_full_quota_is_waited_for(field):
    quota = k8s.V1ResourceQuota(
        metadata=k8s.V1ObjectMeta(name="one"), spec=k8s.V1ResourceQuotaSpec(hard={"pods": "1"})
    )
    field.api.create_namespaced_resource_quota(field.namespace, quota)
    # Where no controller runs, nobody else would.
    status = {"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}}
    field.api.patch_namespaced_resource_quota_status("one", field.namespace, status)
    backend = field.backend()
    first, second = make_submission(), make_submission()
    assert isinstance(submit_one(backend, first), Sent)
    refused = submit_one(backend, second)
    assert isinstance(refused, Postponed)
    assert not refused.ambiguous
    assert "exceeded quota" in refused.reason
    field.api.delete_namespaced_resource_quota("one", field.namespace)
    eventually(lambda: isinstance(submit_one(backend, second), Sent), "the quota is gone")


def test_fault_77_missing_rights_fail_with_the_servers_words(field):
    backend = field.backend(through=field.proxy(as_user="nobody-in-particular"))
    refused = submit_one(backend, make_submission())
    assert isinstance(refused, Rejected)
    assert 'User "nobody-in-particular" cannot create resource "pods"' in refused.reason
    problem = backend.problem()
    assert problem is not None
    assert "cannot list" in problem
    assert "docs/kubernetes.md" in problem


def test_fault_77_a_missing_namespace_fails_with_the_servers_words(field):
    backend = field.backend(conf={"namespace": "no-such-namespace-here"})
    refused = submit_one(backend, make_submission())
    assert isinstance(refused, Rejected)
    assert 'namespaces "no-such-namespace-here" not found' in refused.reason


def test_fault_85_a_pod_that_the_cluster_finds_invalid_fails_alone(field):
    resources = k8s.V1ResourceRequirements(requests={"memory": "lots"})
    container = k8s.V1Container(name="base", resources=resources)
    override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container]))
    bad = make_submission(executor_config={"pod_override": override})
    unknown_volume = k8s.V1VolumeMount(name="nothing", mount_path="/x")
    container = k8s.V1Container(name="base", volume_mounts=[unknown_volume])
    override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container]))
    invalid = make_submission(executor_config={"pod_override": override})
    good = make_submission()
    results = submit(field.backend(), bad, invalid, good)
    assert isinstance(results[good.token], Sent)
    for token, said in ((bad.token, "quantities must match"), (invalid.token, 'Not found: "nothing"')):
        refused = results[token]
        assert isinstance(refused, Rejected)
        assert said in refused.reason
        assert "\n" not in refused.reason
        assert "jwt-of-" not in refused.reason
    assert len(field.kubelet.pods()) == 1


def override(metadata=None, **container):
    containers = [k8s.V1Container(name="base", **container)]
    return {"pod_override": k8s.V1Pod(metadata=metadata, spec=k8s.V1PodSpec(containers=containers))}


def big_variable(size):
    return override(env=[k8s.V1EnvVar(name="BIG", value="x" * size)])


def test_fault_87_what_is_too_large_fails_at_once_and_alone(field):
    annotations = k8s.V1ObjectMeta(annotations={"note": "x" * 256 * 1024})
    too_large = {
        "the workload has 1048577 bytes": make_submission(payload="x" * (1024 * 1024 + 1)),
        "must have at most 262144 bytes": make_submission(executor_config=override(annotations)),
        "clusters store at most 1572864": make_submission(executor_config=big_variable(1_600_000)),
        # A little below what is known, a little above what the database takes.
        "request is too large": make_submission(executor_config=big_variable(1_571_800)),
    }
    good = make_submission()
    results = submit(field.backend(), *too_large.values(), good)
    assert isinstance(results[good.token], Sent)
    for said, submission in too_large.items():
        refused = results[submission.token]
        assert isinstance(refused, Rejected), refused
        assert said in refused.reason
    assert len(field.kubelet.pods()) == 1


def test_fault_96_an_override_may_carry_the_clients_configuration(field):
    """Objects made in a cluster refer to a configuration that cannot be pickled."""
    config = override(image="own:1")
    configuration = k8s_client.Configuration()
    configuration.refresh_api_key_hook = lambda _: None
    unusable = k8s_client.Configuration()
    unusable.lock = threading.Lock()
    for one, shared in ((config, configuration), (bad := override(image="own:1"), unusable)):
        pod = one["pod_override"]
        for model in (pod, pod.spec, pod.spec.containers[0]):
            model.local_vars_configuration = shared
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(config)
    fine, failing = make_submission(executor_config=config), make_submission(executor_config=bad)
    results = submit(field.backend(), failing, fine)
    assert isinstance(results[fine.token], Sent)
    (pod,) = field.kubelet.pods(fine.token)
    assert pod.spec.containers[0].image == "own:1"
    refused = results[failing.token]
    assert isinstance(refused, Rejected)
    assert refused.reason.startswith("executor_config: pod_override cannot be used: TypeError")


@pytest.mark.parametrize(
    ("status", "headers", "ambiguous", "pause"),
    [
        (429, {"Retry-After": "1"}, False, 1),
        (429, {"Retry-After": "soon"}, False, None),
        (429, {}, False, None),
        (500, {}, True, None),
        (502, {}, True, None),
        (503, {"Retry-After": "1"}, False, 1),
        (504, {}, True, None),
        (401, {}, False, None),
        (409, {}, False, None),
        (410, {}, False, None),
    ],
)
def test_fault_79_a_busy_server_is_asked_again(field, status, headers, ambiguous, pause):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.answer(status, **headers))
    backend = field.backend(through=proxy)
    submission = make_submission()
    started = time.monotonic()
    refused = submit_one(backend, submission)
    assert isinstance(refused, Postponed)
    assert (refused.ambiguous, refused.retry_after) == (ambiguous, pause)
    # The pause is the dispatcher's to make: nothing sleeps here.
    assert time.monotonic() - started < 10
    eventually(lambda: isinstance(submit_one(backend, submission), Sent), "it is created after the pause")
    assert proxy.count("POST", "/pods") == 2


def test_a_pod_that_is_being_deleted_is_waited_for(field, tmp_path):
    # Bound to a node that does not exist, so that its deletion is never finished.
    template = write_template(tmp_path / "bound.yaml", nodeName="no-such-node")
    backend = field.backend(conf={"pod_template_file": str(template)})
    submission = make_submission()
    submit_one(backend, submission)
    name = field.kubelet.name_of(submission.token)
    field.api.delete_namespaced_pod(name, field.namespace, grace_period_seconds=60)
    waiting = submit_one(backend, submission)
    assert isinstance(waiting, Postponed)
    assert "being deleted" in waiting.reason
    assert backend.observe() == []
    field.kubelet.delete(name)
    assert isinstance(submit_one(backend, submission), Sent)
    assert backend.observe() == []


def test_a_pod_that_has_ended_is_not_sent_and_its_ending_is_told_at_once(field):
    submission = make_submission()
    submit_one(field.backend(), submission)
    field.kubelet.end(field.kubelet.name_of(submission.token), 1)
    # Its own watch is kept from seeing anything.
    proxy = field.proxy()
    proxy.on("GET", "/pods?", fault_proxy.answer(503), times=None)
    backend = field.backend(through=proxy)
    ended = submit_one(backend, submission)
    assert isinstance(ended, Postponed)
    assert "ended already" in ended.reason
    (told,) = backend.observe()
    assert told.token == submission.token
    assert not told.ok
    assert len(field.kubelet.pods()) == 1


def test_a_foreign_pod_of_the_same_name_is_left_alone(field):
    submission = make_submission()
    backend = field.backend()
    name = f"contract-task-{submission.token}"
    body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "base", "image": "none"}]}}
    field.api.create_namespaced_pod(field.namespace, body)
    refused = submit_one(backend, submission)
    assert isinstance(refused, Rejected)
    assert "another pod has the name" in refused.reason
    assert len(field.kubelet.pods()) == 1


def test_a_connection_test_has_a_pod_of_its_own_name(field):
    from dispatcher.domain.workload import WorkloadKind

    submission = make_submission(WorkloadKind.TEST_CONNECTION)
    assert submit_one(field.backend(), submission) == Sent(
        f"{field.namespace}/test-connection-{submission.token}"
    )


def test_a_missing_image_is_told_before_anything_is_sent(field, tmp_path):
    assert "worker_container_repository" in (field.backend(conf={"pod_template_file": ""}).problem() or "")
    missing = field.backend(conf={"pod_template_file": str(tmp_path / "none.yaml")})
    assert "cannot be read" in (missing.problem() or "")
    postponed = submit_one(missing, make_submission())
    assert isinstance(postponed, Postponed)


def test_without_a_config_file_the_one_of_kubeconfig_is_used(field):
    assert field.backend(conf={"config_file": ""}).problem() is None


def test_missing_configuration_is_told(field, tmp_path):
    backend = field.backend(conf={"config_file": str(tmp_path / "none.yaml")})
    problem = backend.problem() or ""
    assert "no usable Kubernetes configuration" in problem
    assert "KUBECONFIG" in problem
    assert isinstance(submit_one(backend, make_submission()), Postponed)
    assert "in_cluster" in (field.backend(conf={"in_cluster": "True"}).problem() or "")


def test_refused_credentials_are_told(field):
    proxy = field.proxy()
    proxy.on("GET", "/pods", fault_proxy.answer(401), times=None)
    assert "renew the credentials" in (field.backend(through=proxy).problem() or "")


def test_a_server_that_never_answers_holds_nobody_up(field, tmp_path):
    submission = make_submission()
    artefact = Artefact(submission.token, submission.kind, f"{field.namespace}/pod")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "silent.yaml"
        config.write_text(kubeconfig_of(f"http://127.0.0.1:{silent.getsockname()[1]}"), encoding="utf-8")
        backend = field.backend(conf={"config_file": str(config)}, operation_seconds=0.5)
        for step in (
            backend.problem,
            lambda: submit(backend, submission),
            backend.observe,
            lambda: backend.watch([artefact]),
            lambda: backend.revoke([artefact]),
            lambda: backend.remove([artefact]),
            lambda: backend.open_log("ns/pod"),
            backend.stop,
        ):
            started = time.monotonic()
            step()
            assert time.monotonic() - started < 8


def test_bad_settings_are_told(field):
    backend = field.backend(conf={"delete_option_kwargs": "[1]"})
    assert "delete_option_kwargs" in (backend.problem() or "")
    assert isinstance(submit_one(backend, make_submission()), Postponed)
