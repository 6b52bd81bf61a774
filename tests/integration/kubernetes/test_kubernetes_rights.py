# SPDX-License-Identifier: Apache-2.0
"""What accounts with few rights can do: run pods in listed namespaces, and not read workloads."""

from __future__ import annotations

import json

import pytest
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from dispatcher.backends.base import Artefact, Rejected, Sent
from dispatcher.settings import WorkloadDelivery
from tests.support import services
from tests.support.backend_harness import eventually, make_submission, submit
from tests.support.kubernetes_field import Kubelet
from tests.support.kubernetes_rights import EXECUTOR, grant

pytestmark = pytest.mark.needs("kubernetes")


def in_namespace(namespace):
    return {"pod_override": k8s.V1Pod(metadata=k8s.V1ObjectMeta(namespace=namespace))}


def test_fault_93_listed_namespaces_need_no_rights_in_the_cluster(field):
    """The documented rights suffice for a whole life of a pod in a namespace that an override names."""
    with services.own_namespace() as other:
        user = f"executor-{field.namespace}"
        for namespace in (field.namespace, other):
            grant(field.api.api_client, namespace, user, EXECUTOR)
        proxy = field.proxy(as_user=user)
        namespaces = {
            "multi_namespace_mode": "True",
            "multi_namespace_mode_namespace_list": f"{field.namespace}, {other}",
        }
        by_secret = {"workload_delivery": WorkloadDelivery.SECRET}

        def open_backend(job):
            return field.backend(job=job, through=proxy, conf=namespaces, settings=by_secret)

        backend = open_backend("1")
        eventually(lambda: backend.problem() is None, "the rights are in force")
        here, there = make_submission(), make_submission(executor_config=in_namespace(other))
        elsewhere = make_submission(executor_config=in_namespace("kube-system"))
        results = submit(backend, here, there, elsewhere)
        assert isinstance(results[here.token], Sent)
        sent = results[there.token]
        assert isinstance(sent, Sent)
        assert sent.external_id.startswith(f"{other}/")
        refused = results[elsewhere.token]
        assert isinstance(refused, Rejected)
        assert "'kube-system' is not watched" in refused.reason

        assert "has not written a log yet" in backend.open_log(sent.external_id)[0][0]
        adopting = open_backend("2")
        artefact = Artefact(there.token, there.kind, sent.external_id)
        adopting.watch([artefact])
        Kubelet(field.api, other).end(sent.external_id.partition("/")[2], 0)
        for one in (backend, adopting):
            (told,) = eventually(one.observe, "the ending")
            assert (told.token, told.ok) == (there.token, True)
        backend.revoke([Artefact(here.token, here.kind)])
        adopting.remove([artefact])
        eventually(
            lambda: not (field.kubelet.pods() or Kubelet(field.api, other).pods()), "both pods are gone"
        )
        asked = {path.partition("?")[0] for _, path in proxy.seen}
        assert all(path.startswith("/api/v1/namespaces/") for path in asked), asked


def test_fault_110_who_may_read_pods_learns_no_token(field):
    reader = f"reader-{field.namespace}"
    rights = {"pods": ("get", "list"), "pods/log": ("get",), "events": ("get", "list")}
    grant(field.api.api_client, field.namespace, reader, rights)
    large = make_submission(payload=json.dumps({"token": "jwt-of-large", "filling": "x" * 200 * 1024}))
    small = make_submission()
    by_secret = field.backend(settings={"workload_delivery": WorkloadDelivery.SECRET})
    assert isinstance(submit(by_secret, small)[small.token], Sent)
    assert isinstance(submit(field.backend(), large)[large.token], Sent)

    from kubernetes.client import CoreV1Api
    from kubernetes.config import new_client_from_config

    with new_client_from_config(field.proxy(as_user=reader).kubeconfig) as client:
        api = CoreV1Api(client)
        pods = eventually(lambda: list_if_allowed(api, field.namespace), "the rights are in force")
        assert len(pods) == 2
        events = api.list_namespaced_event(field.namespace).items
        logs = [api.read_namespaced_pod_log(pod.metadata.name, field.namespace) for pod in pods]
        assert "jwt-of-" not in repr((pods, events, logs))
        for pod in pods:
            with pytest.raises(ApiException) as caught:
                api.read_namespaced_secret(pod.metadata.name, field.namespace)
            assert caught.value.status == 403
    secrets = field.api.list_namespaced_secret(field.namespace).items
    owners = {owner.uid for secret in secrets for owner in secret.metadata.owner_references or ()}
    assert owners == {pod.metadata.uid for pod in pods}


def list_if_allowed(api, namespace):
    try:
        return api.list_namespaced_pod(namespace).items
    except ApiException as exc:
        if exc.status != 403:
            raise
        return None
