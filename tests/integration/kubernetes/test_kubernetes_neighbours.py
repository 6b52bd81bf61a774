# SPDX-License-Identifier: Apache-2.0
"""Pods that are not ours to judge: of other deployments, of other schedulers, of nobody."""

from __future__ import annotations

import logging

import pytest

from dispatcher.backends.base import Artefact, Sent
from tests.support.backend_harness import eventually, make_submission, submit

pytestmark = pytest.mark.needs("kubernetes")


def send(backend, **changes):
    submission = make_submission(**changes)
    result = submit(backend, submission)[submission.token]
    assert isinstance(result, Sent)
    return Artefact(submission.token, submission.kind, result.external_id)


def test_fault_72_two_deployments_in_one_namespace_leave_each_other_alone(field):
    # Two databases, and so the same scheduler job ids.
    ours = field.backend(job="1", settings={"deployment": "blue"})
    theirs = field.backend(job="1", settings={"deployment": "green"})
    mine, other = send(ours), send(theirs)
    field.kubelet.end(field.kubelet.name_of(mine.token), 0)
    field.kubelet.end(field.kubelet.name_of(other.token), 0)
    assert [one.token for one in eventually(ours.observe, "ours")] == [mine.token]
    assert [one.token for one in eventually(theirs.observe, "theirs")] == [other.token]
    theirs.revoke([Artefact(mine.token, mine.kind)])
    theirs.remove([Artefact(mine.token, mine.kind)])
    assert len(field.kubelet.pods(mine.token)) == 1
    ours.remove([Artefact(mine.token, mine.kind)])
    eventually(lambda: field.kubelet.pods(mine.token) == [], "ours removes it")


def test_fault_72_two_teams_tell_of_their_own_pods_alone(field):
    blue, green = field.backend(team_name="blue"), field.backend(team_name="green")
    mine = send(blue)
    send(green)
    for pod in field.kubelet.pods():
        field.kubelet.end(pod.metadata.name, 0)
    assert [one.token for one in eventually(blue.observe, "blue's")] == [mine.token]
    teams = {pod.metadata.labels["airflow-team"] for pod in field.kubelet.pods()}
    assert teams == {"blue", "green"}


@pytest.mark.parametrize("annotations", [{}, {"airflow-launch-token": "x"}, {"dag_id": "d", "task_id": "t"}])
def test_fault_60_a_pod_without_annotations_is_warned_of_once_and_left_alone(field, annotations, caplog):
    labels = {"airflow-executor": "hybrid-dispatcher", "airflow-deployment": field.namespace}
    stranger = {
        "metadata": {"name": "stranger", "labels": labels, "annotations": annotations},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "base", "image": "none"}]},
    }
    field.api.create_namespaced_pod(field.namespace, stranger)
    backend = field.backend()
    with caplog.at_level(logging.WARNING, logger="dispatcher"):
        mine = send(backend)
        field.kubelet.end("stranger", 1)
        field.kubelet.end(field.kubelet.name_of(mine.token), 0)
        assert [one.token for one in eventually(backend.observe, "ours")] == [mine.token]
    assert len(caplog.records) == 1
    assert "stranger does not say" in caplog.text or "stranger has our labels" in caplog.text
    assert any(pod.metadata.name == "stranger" for pod in field.kubelet.pods())


def test_labels_that_somebody_takes_away_make_no_pod_vanish(field):
    backend = field.backend()
    mine = send(backend)
    name = field.kubelet.name_of(mine.token)
    field.kubelet.set_status(name, phase="Running")
    body = {"metadata": {"labels": {"airflow-executor": None}}}
    field.api.patch_namespaced_pod(name, field.namespace, body)
    # To a watch by label this looks like a deletion.
    seen = eventually(lambda: backend.observe() or _looked_for(backend, mine), "it is looked for")
    assert seen == "exists"


def _looked_for(backend, artefact):
    (known,) = backend._table.find(artefact.token)
    return "exists" if known.confirmed and known.exists else None


def test_pods_of_several_namespaces(field):
    from tests.support import services

    with services.own_namespace() as second:
        backend = field.backend(
            conf={
                "multi_namespace_mode": "True",
                "multi_namespace_mode_namespace_list": f"{field.namespace}, {second}",
            }
        )
        from kubernetes.client import models as k8s

        override = k8s.V1Pod(metadata=k8s.V1ObjectMeta(namespace=second))
        here, there = send(backend), send(backend, executor_config={"pod_override": override})
        assert there.external_id.startswith(f"{second}/")
        namespace, name = there.external_id.split("/")
        state = {"terminated": {"exitCode": 3}}
        container = {
            "name": "base",
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": state,
        }
        status = {"status": {"phase": "Failed", "containerStatuses": [container]}}
        field.api.patch_namespaced_pod_status(name, namespace, status)
        (told,) = eventually(backend.observe, "the other namespace is watched")
        assert told.token == there.token
        backend.revoke([Artefact(there.token, there.kind), Artefact(here.token, here.kind)])
        eventually(lambda: field.kubelet.pods() == [], "both are gone")
        eventually(lambda: field.api.list_namespaced_pod(second).items == [], "both are gone")
