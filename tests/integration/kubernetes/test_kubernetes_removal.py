# SPDX-License-Identifier: Apache-2.0
"""Taking pods and Secrets away, as the settings say."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Artefact, Rejected, Sent
from dispatcher.settings import WorkloadDelivery
from tests.support import fault_proxy
from tests.support.backend_harness import eventually, make_submission, submit
from tests.support.kubernetes_field import write_template

pytestmark = pytest.mark.needs("kubernetes")

BY_SECRET = {"workload_delivery": WorkloadDelivery.SECRET}


def send(backend, **changes):
    submission = make_submission(**changes)
    result = submit(backend, submission)[submission.token]
    assert isinstance(result, Sent)
    return Artefact(submission.token, submission.kind, result.external_id)


def end(field, backend, artefact, exit_code):
    field.kubelet.end(field.kubelet.name_of(artefact.token), exit_code)
    eventually(backend.observe, "the ending")


def secrets(field):
    return [
        secret
        for secret in field.api.list_namespaced_secret(field.namespace).items
        if secret.type == "Opaque"
    ]


@pytest.mark.parametrize(
    ("settings", "exit_code", "kept"),
    [
        ({}, 0, False),
        ({}, 1, True),
        ({"delete_worker_pods_on_failure": "True"}, 1, False),
        ({"delete_worker_pods": "False"}, 0, True),
        ({"delete_worker_pods": "False", "delete_worker_pods_on_failure": "True"}, 1, True),
    ],
)
def test_ended_pods_are_kept_as_the_settings_say(field, settings, exit_code, kept):
    backend = field.backend(conf=settings, settings=BY_SECRET)
    artefact = send(backend)
    end(field, backend, artefact, exit_code)
    backend.remove([artefact])
    assert backend.observe() == []

    def dealt_with() -> bool:
        return all("airflow-launch-done" in pod.metadata.labels for pod in field.kubelet.pods())

    eventually(dealt_with, "the pod is deleted or marked")
    assert len(field.kubelet.pods()) == kept
    if kept:
        # Its token is of no use any more, and nobody's business.
        assert secrets(field) == []


def test_a_kept_pod_is_watched_by_nobody(field):
    backend = field.backend(conf={"delete_worker_pods": "False"})
    artefact = send(backend)
    end(field, backend, artefact, 0)
    backend.remove([artefact])
    other = field.backend(job="2")
    other.watch([Artefact(artefact.token, artefact.kind)])
    later = send(other)
    end(field, other, later, 0)
    assert [one.token for one in other.observe()] == [later.token]


def test_a_revoked_pod_gets_the_grace_that_the_settings_give(field, tmp_path):
    template = write_template(tmp_path / "bound.yaml", nodeName="no-such-node")
    backend = field.backend(
        conf={
            "pod_template_file": str(template),
            "delete_option_kwargs": '{"grace_period_seconds": 77}',
        }
    )
    artefact = send(backend)
    backend.revoke([artefact])
    (pod,) = field.kubelet.pods()
    assert pod.metadata.deletion_grace_period_seconds == 77
    assert backend.observe() == []


def test_a_removal_that_fails_is_done_later(field):
    proxy = field.proxy()
    backend = field.backend(through=proxy)
    artefact = send(backend)
    end(field, backend, artefact, 0)
    proxy.on("DELETE", "/pods/", fault_proxy.reset)
    backend.remove([artefact])
    assert len(field.kubelet.pods()) == 1

    def gone() -> bool:
        backend.observe()
        return field.kubelet.pods() == []

    eventually(gone, "it is tried again")
    deletions = proxy.count("DELETE", "/pods/")
    assert deletions == 2


def test_a_removal_without_the_right_is_not_tried_for_ever(field, caplog):
    proxy = field.proxy()
    backend = field.backend(through=proxy)
    artefact = send(backend)
    proxy.on("DELETE", "/pods/", fault_proxy.answer(403, "forbidden"), times=None)
    backend.revoke([artefact])
    told = "stays: the API server answered 403: forbidden"
    eventually(lambda: told in caplog.text and not backend._removals, "it is given up")


def test_fault_110_the_token_is_in_the_secret_alone(field):
    backend = field.backend(settings=BY_SECRET)
    artefact = send(backend)
    (pod,) = field.kubelet.pods()
    assert "jwt-of-" not in str(pod.to_dict())
    (secret,) = secrets(field)
    assert secret.metadata.name == pod.metadata.name
    (owner,) = secret.metadata.owner_references
    assert (owner.kind, owner.uid) == ("Pod", pod.metadata.uid)
    assert secret.metadata.labels["airflow-launch-token"] == artefact.token
    assert list(secret.data) == ["workload.json"]


def test_fault_87_a_large_workload_is_delivered_by_secret(field):
    artefact = send(field.backend(), payload="x" * 200_000)
    (secret,) = secrets(field)
    assert secret.metadata.name == field.kubelet.name_of(artefact.token)


def test_a_workload_that_no_secret_can_hold_fails_alone(field):
    backend = field.backend()
    submission = make_submission(payload="x" * 1_100_000)
    refused = submit(backend, submission)[submission.token]
    assert isinstance(refused, Rejected)
    assert "Secret" in refused.reason
    eventually(lambda: field.kubelet.pods() == [], "the pod that could never start is taken back")


def test_without_the_right_to_make_secrets_it_fails_and_the_pod_is_taken_back(field):
    proxy = field.proxy()
    proxy.on("POST", "/secrets", fault_proxy.answer(403, "no secrets for you"))
    submission = make_submission()
    refused = submit(field.backend(through=proxy, settings=BY_SECRET), submission)[submission.token]
    assert isinstance(refused, Rejected)
    assert "no secrets for you" in refused.reason
    eventually(lambda: field.kubelet.pods() == [], "the pod that could never start is taken back")


def test_a_secret_that_failed_is_made_when_the_token_is_sent_again(field):
    proxy = field.proxy()
    proxy.on("POST", "/secrets", fault_proxy.reset)
    backend = field.backend(through=proxy, settings=BY_SECRET)
    submission = make_submission()
    first = submit(backend, submission)[submission.token]
    assert not isinstance(first, (Sent, Rejected))
    assert secrets(field) == []
    assert isinstance(submit(backend, submission)[submission.token], Sent)
    assert len(secrets(field)) == len(field.kubelet.pods()) == 1


def test_the_secret_of_an_earlier_pod_is_taken_over(field):
    backend = field.backend(settings=BY_SECRET)
    submission = make_submission(payload="old")
    submit(backend, submission)
    (old,) = field.kubelet.pods()
    (secret,) = secrets(field)
    field.kubelet.delete(old.metadata.name)
    eventually(backend.observe, "it is gone")
    # Where a garbage collector runs, the Secret may be gone by now; put it back as it was.
    if not secrets(field):
        secret.metadata.resource_version = None
        secret.metadata.owner_references = None
        field.api.create_namespaced_secret(field.namespace, secret)
    renewed = make_submission(token=submission.token, payload="new")
    assert isinstance(submit(backend, renewed)[submission.token], Sent)
    (pod,) = field.kubelet.pods()
    (secret,) = secrets(field)
    assert pod.metadata.uid in [owner.uid for owner in secret.metadata.owner_references]
    assert secret.data["workload.json"] == "bmV3"


@pytest.mark.needs("node")
def test_the_secret_ends_with_its_pod(field):
    backend = field.backend(settings=BY_SECRET)
    artefact = send(backend)
    end(field, backend, artefact, 0)
    backend.remove([artefact])
    eventually(lambda: secrets(field) == [], "the garbage collector has taken it", seconds=60)
