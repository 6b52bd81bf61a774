# SPDX-License-Identifier: Apache-2.0
"""Pods that a node really runs: what they are given, and how their ends look."""

from __future__ import annotations

import hashlib
import os

import pytest
from kubernetes.client import models as k8s

from dispatcher.backends.base import Artefact, Sent
from dispatcher.backends.kubernetes.pods import ARGS_LIMIT
from dispatcher.domain.pod_claimant import POD_UID_VARIABLE, claimants_of_pod
from dispatcher.settings import WorkloadDelivery
from tests.support.backend_harness import eventually, make_submission, submit
from tests.support.clusters import POD_TEMPLATE_VARIABLE

pytestmark = [
    pytest.mark.needs("node"),
    pytest.mark.skipif(POD_TEMPLATE_VARIABLE not in os.environ, reason=f"{POD_TEMPLATE_VARIABLE} is not set"),
]


@pytest.fixture
def run(field):
    """Return a function that runs a shell script in a pod, and returns backend, artefact and pod."""

    def run(script: str, payload: str | None = None, **settings):
        backend = field.backend(
            conf={"pod_template_file": os.environ[POD_TEMPLATE_VARIABLE], "delete_worker_pods": "False"},
            settings=settings,
        )
        # What follows the script are its own arguments.
        container = k8s.V1Container(name="base", command=["sh", "-c", script])
        override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container]))
        changes = {} if payload is None else {"payload": payload}
        submission = make_submission(executor_config={"pod_override": override}, **changes)
        sent = submit(backend, submission)[submission.token]
        assert isinstance(sent, Sent), sent
        (pod,) = field.kubelet.pods(submission.token)
        return backend, Artefact(submission.token, submission.kind, sent.external_id), pod

    return run


def log_of(backend, artefact):
    _, streams = backend.open_log(artefact.external_id)
    return [line for lines in streams for line in lines]


def ending(backend):
    (told,) = eventually(backend.observe, "the ending", seconds=60)
    return told


def test_a_pod_knows_its_uid_and_its_log_is_read(run):
    backend, artefact, pod = run(f'echo "uid=${POD_UID_VARIABLE} é"; echo last; exit 0')
    assert ending(backend).ok
    assert log_of(backend, artefact) == [f"uid={pod.metadata.uid} é", "last"]


def test_a_failure_is_told_with_its_exit_code_and_its_pod(run):
    backend, _, pod = run("exit 3")
    told = ending(backend)
    assert not told.ok
    assert told.reason == "container base: Error, exit code 3"
    assert told.claimant == claimants_of_pod(pod.metadata.uid)


def test_the_workload_is_there_by_secret(run):
    backend, artefact, _ = run("cat /airflow-workload/*", workload_delivery=WorkloadDelivery.SECRET)
    assert ending(backend).ok
    assert log_of(backend, artefact) == [f'{{"token": "jwt-of-{artefact.token}"}}']


@pytest.mark.parametrize(
    ("size", "script"),
    [(ARGS_LIMIT, 'printf %s "$4" | sha256sum'), (200 * 1024, "sha256sum < /airflow-workload/workload.json")],
    ids=["arguments", "secret"],
)
def test_fault_87_a_large_workload_arrives_as_it_is(size, script, run):
    payload = '{"odd": "$(HOME) $$(HOME) $$ $x \\\\ é", "filling": "'
    payload += "x" * (size - len(payload.encode()))
    backend, artefact, _ = run(script, payload)
    assert ending(backend).ok
    assert log_of(backend, artefact) == [f"{hashlib.sha256(payload.encode()).hexdigest()}  -"]


def test_a_pod_that_is_revoked_while_it_runs_ends(run, field):
    backend, artefact, pod = run("trap 'exit 0' TERM; echo up; while :; do sleep 0.2; done")
    eventually(lambda: log_of(backend, artefact) == ["up"], "it runs", seconds=60)
    assert backend.observe() == []
    backend.revoke([artefact])
    told = ending(backend)
    # Which of the two is seen depends on how the node takes its leave.
    assert told.ok or told.gone
    eventually(lambda: field.kubelet.pods(artefact.token) == [], "it is gone", seconds=60)
    assert pod.metadata.uid


CANNOT_START = {
    "no such program": (
        {"command": ["/no/such/program"]},
        ("StartError", "ContainerCannotRun"),
        "/no/such/program",
        True,
    ),
    "image name": ({"image": "Not_A_Name::"}, ("InvalidImageName",), "Not_A_Name::", False),
    "image not there": (
        {"image": "none.invalid/none:none", "image_pull_policy": "Never"},
        ("ErrImageNeverPull",),
        "none.invalid/none:none",
        True,
    ),
    "config map not there": (
        {
            "env_from": [
                k8s.V1EnvFromSource(config_map_ref=k8s.V1ConfigMapEnvSource(name="no-such-config-map"))
            ]
        },
        ("CreateContainerConfigError",),
        "no-such-config-map",
        True,
    ),
}


def test_fault_81_what_cannot_start_on_a_real_node_is_told_with_the_reason(field):
    backend = field.backend(conf={"pod_template_file": os.environ[POD_TEMPLATE_VARIABLE]})
    sent = {}
    for case, (changes, *_) in CANNOT_START.items():
        container = k8s.V1Container(name="base", **changes)
        override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container]))
        sent[case] = make_submission(executor_config={"pod_override": override})
    backend.submit(list(sent.values()))

    def told():
        seen = {one.token: one for one in backend.observe()}
        return seen if len(seen) == len(sent) else None

    seen = eventually(told, "all are told", seconds=90)
    for case, (_, reasons, words, again) in CANNOT_START.items():
        observation = seen[sent[case].token]
        assert any(f"container base: {reason}" in observation.reason for reason in reasons), observation
        assert words in observation.reason
        assert (observation.ok, observation.by_infrastructure) == (False, again)
