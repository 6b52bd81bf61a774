# SPDX-License-Identifier: Apache-2.0
"""What an executor needs of a Kubernetes API: patches, status, deletion, secrets, events; without a node."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.support.clusters import (
    BOTH_WITH_NODE,
    JSON_PATCH,
    MERGE,
    NOW,
    STRATEGIC,
    Cluster,
    create,
    pod,
    refusal,
    version_of,
    wait_for,
)

if TYPE_CHECKING:
    pass


class TestPatch:
    def test_merge(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, {"a": "1", "b": "2"})
        body = {"metadata": {"labels": {"a": None, "c": "3"}, "annotations": {"x": "y"}}}
        patched = cluster.http.patch(cluster.path("pods", name), json=body, headers=MERGE).json()
        assert patched["metadata"]["labels"] == {"b": "2", "c": "3"}
        assert patched["metadata"]["annotations"] == {"x": "y"}
        assert cluster.http.get(cluster.path("pods", name)).json() == patched

    def test_strategic_merge(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, {"a": "1"})
        body = {
            "metadata": {"labels": {"b": "2"}},
            "spec": {"containers": [{"name": "base", "image": "other"}]},
        }
        patched = cluster.http.patch(cluster.path("pods", name), json=body, headers=STRATEGIC).json()
        assert patched["metadata"]["labels"] == {"a": "1", "b": "2"}
        assert [found["image"] for found in patched["spec"]["containers"]] == ["other"]

    def test_json_patch(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, {"a": "1"})
        body = [
            {"op": "test", "path": "/metadata/labels/a", "value": "1"},
            {"op": "replace", "path": "/metadata/labels/a", "value": "2"},
            {"op": "add", "path": "/metadata/labels/x.y~1z", "value": "3"},
        ]
        patched = cluster.http.patch(cluster.path("pods", name), json=body, headers=JSON_PATCH).json()
        assert patched["metadata"]["labels"] == {"a": "2", "x.y/z": "3"}

    def test_the_real_client_patches(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, {"a": "1"})
        operations = [{"op": "remove", "path": "/metadata/labels/a"}]
        patched = cluster.api.patch_namespaced_pod(name, cluster.namespace, operations)
        assert not patched.metadata.labels

    def test_one_that_changes_nothing_is_no_change(self, cluster: Cluster, name: str) -> None:
        created = create(cluster, name, {"a": "1"})
        version = version_of(cluster)
        body = {"metadata": {"labels": {"a": "1"}}}
        patched = cluster.http.patch(cluster.path("pods", name), json=body, headers=MERGE).json()
        assert patched["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        assert cluster.events(version, seconds=1, fieldSelector=f"metadata.name={name}") == []

    @pytest.mark.parametrize(
        ("headers", "body", "code", "reason"),
        [
            pytest.param(MERGE, {"metadata": {"labels": {"a": "b c"}}}, 422, "Invalid", id="bad-label"),
            pytest.param(MERGE, {"spec": {"nodeName": "x"}}, 422, "Invalid", id="spec"),
            pytest.param(MERGE, {"metadata": {"uid": "x"}}, 422, "Invalid", id="uid"),
            pytest.param(MERGE, {"metadata": {"name": "x"}}, 400, "BadRequest", id="name"),
            pytest.param(MERGE, {"metadata": {"resourceVersion": "1"}}, 409, "Conflict", id="version"),
            pytest.param(MERGE, {"metadata": {"labels": 1}}, 422, "Invalid", id="type"),
            pytest.param(JSON_PATCH, {"op": "remove"}, 400, "BadRequest", id="no-list"),
            pytest.param(
                JSON_PATCH, [{"op": "test", "path": "/kind", "value": "x"}], 422, "Invalid", id="test"
            ),
            pytest.param(JSON_PATCH, [{"op": "remove", "path": "/metadata/x"}], 422, "Invalid", id="missing"),
            pytest.param({"Content-Type": "application/json"}, {}, 415, "UnsupportedMediaType", id="kind"),
        ],
    )
    def test_one_that_does_not_fit_is_refused(
        self, cluster: Cluster, name: str, headers: dict[str, str], body: object, code: int, reason: str
    ) -> None:
        created = create(cluster, name)
        path = cluster.path("pods", name)
        refusal(cluster.http.patch(path, json=body, headers=headers), code, reason)
        assert cluster.http.get(path).json() == created

    def test_an_unknown_pod(self, cluster: Cluster, name: str) -> None:
        response = cluster.http.patch(cluster.path("pods", name), json={}, headers=MERGE)
        refusal(response, 404, "NotFound")


class TestStatus:
    def test_it_is_written_by_patch(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        body = {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}
        path = f"{cluster.path('pods', name)}/status"
        patched = cluster.http.patch(path, json=body, headers=MERGE).json()
        assert patched["status"]["phase"] == "Running"
        assert patched["metadata"]["labels"] == {"a": "b"}
        assert cluster.http.get(path).json() == patched

    def test_it_is_written_by_put_on_the_newest_version_only(self, cluster: Cluster, name: str) -> None:
        body = create(cluster, name)
        path = f"{cluster.path('pods', name)}/status"
        body["status"]["phase"] = "Succeeded"
        body["spec"]["nodeName"] = "ignored"
        written = cluster.http.put(path, json=body).json()
        assert written["status"]["phase"] == "Succeeded"
        assert "nodeName" not in written["spec"]
        body["status"]["phase"] = "Failed"
        status = refusal(cluster.http.put(path, json=body), 409, "Conflict")
        assert status["details"] == {"name": name, "kind": "pods"}
        del body["metadata"]["resourceVersion"]
        assert cluster.http.put(path, json=body).json()["status"]["phase"] == "Failed"

    def test_the_real_client_writes_a_container_status(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": None, "finishedAt": None}
        container = {
            "name": "base",
            "state": {"terminated": ended},
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
        }
        body = {"status": {"phase": "Failed", "reason": "Evicted", "containerStatuses": [container]}}
        cluster.api.patch_namespaced_pod_status(name, cluster.namespace, body)
        read = cluster.api.read_namespaced_pod(name, cluster.namespace).status
        assert (read.phase, read.reason) == ("Failed", "Evicted")
        assert read.container_statuses[0].state.terminated.reason == "OOMKilled"

    def test_conditions_are_merged_by_type(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        path = f"{cluster.path('pods', name)}/status"
        for kind, value in (("Ready", "True"), ("Other", "True"), ("Ready", "False")):
            body = {"status": {"conditions": [{"type": kind, "status": value}]}}
            cluster.http.patch(path, json=body, headers=STRATEGIC).raise_for_status()
        found = cluster.http.get(path).json()["status"]["conditions"]
        assert {one["type"]: one["status"] for one in found} == {"Ready": "False", "Other": "True"}

    def test_a_write_of_the_object_leaves_it_alone(self, cluster: Cluster, name: str) -> None:
        body = create(cluster, name)
        body["status"] = {"phase": "Running"}
        body["metadata"]["labels"] = {"a": "b"}
        written = cluster.http.put(cluster.path("pods", name), json=body).json()
        assert written["status"]["phase"] == "Pending"
        assert written["metadata"]["labels"] == {"a": "b"}


class TestDelete:
    def test_a_pod_without_a_node_goes_at_once(self, cluster: Cluster, name: str) -> None:
        created = create(cluster, name)
        answer = cluster.http.delete(cluster.path("pods", name)).json()
        assert (answer["kind"], answer["metadata"]["uid"]) == ("Pod", created["metadata"]["uid"])
        assert answer["metadata"]["deletionGracePeriodSeconds"] == 0
        refusal(cluster.http.get(cluster.path("pods", name)), 404, "NotFound")

    def test_a_finished_pod_goes_at_once(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, nodeName="nowhere")
        path = cluster.path("pods", name)
        cluster.http.patch(f"{path}/status", json={"status": {"phase": "Failed"}}, headers=MERGE)
        assert cluster.http.delete(path).status_code == 200
        refusal(cluster.http.get(path), 404, "NotFound")

    def test_a_pod_on_a_node_is_marked_first(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, nodeName="nowhere")
        path = cluster.path("pods", name)
        marked = cluster.http.delete(path).json()
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
        assert "deletionTimestamp" in marked["metadata"]
        assert cluster.http.get(path).json() == marked
        assert cluster.http.delete(path).json() == marked
        shorter = cluster.http.delete(path, params={"gracePeriodSeconds": "5"}).json()
        assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
        longer = cluster.http.delete(path, params={"gracePeriodSeconds": "60"}).json()
        assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
        body = {"status": {"phase": "Running"}}
        running = cluster.http.patch(f"{path}/status", json=body, headers=MERGE).json()
        assert running["metadata"]["deletionTimestamp"] == shorter["metadata"]["deletionTimestamp"]
        assert cluster.http.delete(path, params=NOW).status_code == 200
        refusal(cluster.http.get(path), 404, "NotFound")

    def test_the_name_of_a_terminating_pod_is_taken(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, nodeName="nowhere")
        cluster.http.delete(cluster.path("pods", name))
        status = refusal(cluster.http.post(cluster.path("pods"), json=pod(name)), 409, "AlreadyExists")
        assert status["message"] == f'object is being deleted: pods "{name}" already exists'
        cluster.http.delete(cluster.path("pods", name), params=NOW)
        create(cluster, name)

    def test_the_real_client_deletes(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, nodeName="nowhere")
        cluster.api.delete_namespaced_pod(name, cluster.namespace, propagation_policy="Background")
        assert cluster.api.read_namespaced_pod(name, cluster.namespace).metadata.deletion_timestamp
        cluster.api.delete_namespaced_pod(name, cluster.namespace, grace_period_seconds=0)
        with pytest.raises(ApiException) as caught:
            cluster.api.delete_namespaced_pod(name, cluster.namespace)
        assert caught.value.status == 404

    @pytest.mark.parametrize("precondition", [{"uid": "x"}, {"resourceVersion": "1"}])
    def test_a_precondition_that_does_not_hold(
        self, cluster: Cluster, name: str, precondition: dict[str, str]
    ) -> None:
        create(cluster, name)
        path = cluster.path("pods", name)
        response = cluster.http.request("DELETE", path, json={"preconditions": precondition})
        refusal(response, 409, "Conflict")
        assert cluster.http.get(path).status_code == 200

    def test_a_precondition_that_holds(self, cluster: Cluster, name: str) -> None:
        uid = create(cluster, name)["metadata"]["uid"]
        path = cluster.path("pods", name)
        body = {"preconditions": {"uid": uid}, "gracePeriodSeconds": 0}
        assert cluster.http.request("DELETE", path, json=body).status_code == 200
        refusal(cluster.http.get(path), 404, "NotFound")

    def test_bad_options_are_refused(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        path = cluster.path("pods", name)
        refusal(cluster.http.delete(path, params={"propagationPolicy": "x"}), 422, "Invalid")
        refusal(cluster.http.delete(path, params={"gracePeriodSeconds": "x"}), 400, "BadRequest")

    def test_a_finalizer_holds_a_pod(self, cluster: Cluster, name: str) -> None:
        body = pod(name)
        body["metadata"]["finalizers"] = ["example.com/hold"]
        cluster.http.post(cluster.path("pods"), json=body).raise_for_status()
        path = cluster.path("pods", name)
        cluster.http.delete(path)
        assert "deletionTimestamp" in cluster.http.get(path).json()["metadata"]
        cluster.http.patch(path, json={"metadata": {"finalizers": None}}, headers=MERGE).raise_for_status()
        refusal(cluster.http.get(path), 404, "NotFound")

    def test_a_collection(self, cluster: Cluster, name: str) -> None:
        for number, label in enumerate("aab"):
            create(cluster, f"{name}-{number}", {"test": name, "label": label})
        query = {"labelSelector": f"test={name},label=a", **NOW}
        answer = cluster.http.delete(cluster.path("pods"), params=query).json()
        assert answer["kind"] == "PodList"
        assert len(answer["items"]) == 2
        left = cluster.http.get(cluster.path("pods"), params={"labelSelector": f"test={name}"}).json()[
            "items"
        ]
        assert [item["metadata"]["name"] for item in left] == [f"{name}-2"]


class TestSecrets:
    def test_text_is_kept_as_base64(self, cluster: Cluster, name: str) -> None:
        body = {"metadata": {"name": name}, "data": {"a": "YQ==", "b": "YQ=="}, "stringData": {"b": "b"}}
        created = cluster.http.post(cluster.path("secrets"), json=body).json()
        assert created["data"] == {"a": "YQ==", "b": "Yg=="}
        assert "stringData" not in created
        assert created["type"] == "Opaque"
        assert cluster.http.get(cluster.path("secrets", name)).json() == created

    def test_the_real_client(self, cluster: Cluster, name: str) -> None:
        body = {"metadata": {"name": name, "labels": {"test": name}}, "stringData": {"a": "b"}}
        cluster.api.create_namespaced_secret(cluster.namespace, body)
        listed = cluster.api.list_namespaced_secret(cluster.namespace, label_selector=f"test={name}").items
        assert [found.data for found in listed] == [{"a": "Yg=="}]
        patched = cluster.api.patch_namespaced_secret(name, cluster.namespace, {"stringData": {"c": "d"}})
        assert patched.data == {"a": "Yg==", "c": "ZA=="}
        answer = cluster.api.delete_namespaced_secret(name, cluster.namespace)
        assert (answer.kind, answer.status, answer.details.name) == ("Status", "Success", name)

    def test_a_second_of_the_name_is_refused(self, cluster: Cluster, name: str) -> None:
        for code in (201, 409):
            response = cluster.http.post(cluster.path("secrets"), json={"metadata": {"name": name}})
            assert response.status_code == code
        assert refusal(response, 409, "AlreadyExists")["details"] == {"name": name, "kind": "secrets"}

    @pytest.mark.parametrize(
        ("content", "code", "reason"),
        [
            ({"data": {"a": "!!"}}, 400, "BadRequest"),
            ({"data": {"a": 1}}, 400, "BadRequest"),
            ({"data": {"a b": "YQ=="}}, 422, "Invalid"),
            ({"stringData": {"a": "x" * (1024 * 1024 + 1)}}, 422, "Invalid"),
        ],
        ids=["no-base64", "number", "bad-key", "too-large"],
    )
    def test_an_invalid_one_is_refused(
        self, cluster: Cluster, name: str, content: dict[str, Any], code: int, reason: str
    ) -> None:
        body = {"metadata": {"name": name}, **content}
        refusal(cluster.http.post(cluster.path("secrets"), json=body), code, reason)

    def test_it_is_replaced(self, cluster: Cluster, name: str) -> None:
        body = {"metadata": {"name": name}, "stringData": {"a": "b"}}
        created = cluster.http.post(cluster.path("secrets"), json=body).json()
        path = cluster.path("secrets", name)
        replaced = cluster.http.put(path, json={**created, "data": {"c": "ZA=="}}).json()
        assert replaced["data"] == {"c": "ZA=="}
        refusal(cluster.http.put(path, json={**created, "data": {}}), 409, "Conflict")
        refusal(cluster.http.patch(path, json={"type": "other"}, headers=MERGE), 422, "Invalid")

    @pytest.mark.parametrize(
        "cluster",
        BOTH_WITH_NODE,
        indirect=True,
    )
    def test_it_goes_with_the_pod_that_owns_it(self, cluster: Cluster, name: str) -> None:
        owner = create(cluster, name)["metadata"]
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["name"], "uid": owner["uid"]}
        for secret, uid in ((name, owner["uid"]), (f"{name}-stray", str(uuid.uuid4()))):
            references = [{**reference, "uid": uid}]
            body = {"metadata": {"name": secret, "ownerReferences": references}}
            cluster.http.post(cluster.path("secrets"), json=body).raise_for_status()

        def is_gone(secret: str) -> bool:
            return cluster.http.get(cluster.path("secrets", secret)).status_code == 404

        wait_for(lambda: is_gone(f"{name}-stray"))
        assert not is_gone(name)
        cluster.http.delete(cluster.path("pods", name), params=NOW)
        wait_for(lambda: is_gone(name))

    @pytest.mark.parametrize(
        "cluster",
        BOTH_WITH_NODE,
        indirect=True,
    )
    def test_it_goes_with_its_namespace(self, cluster: Cluster, name: str) -> None:
        cluster.http.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
        inside = f"/api/v1/namespaces/{name}"
        for path, body in (("secrets", {"metadata": {"name": name}}), ("pods", pod(name))):
            cluster.http.post(f"{inside}/{path}", json=body).raise_for_status()
        answer = cluster.http.delete(inside).json()
        assert answer["status"]["phase"] == "Terminating"
        wait_for(lambda: cluster.http.get(inside).status_code == 404)
        assert cluster.http.get(f"{inside}/secrets").json()["items"] == []


class TestEventsAndNodes:
    def test_events_are_listed_by_what_they_are_about(self, cluster: Cluster, name: str) -> None:
        for number, about in enumerate((name, "other")):
            body = {
                "metadata": {"name": f"{name}.{number}"},
                "involvedObject": {"kind": "Pod", "name": about, "namespace": cluster.namespace},
                "reason": "Tested",
                "message": "a message",
                "type": "Normal",
            }
            cluster.http.post(cluster.path("events"), json=body).raise_for_status()
        selector = f"involvedObject.name={name},involvedObject.kind=Pod,reason=Tested,type=Normal"
        found = cluster.api.list_namespaced_event(cluster.namespace, field_selector=selector).items
        assert [(event.metadata.name, event.message) for event in found] == [(f"{name}.0", "a message")]

    def test_nodes_are_listed(self, cluster: Cluster) -> None:
        found = cluster.http.get("/api/v1/nodes").json()
        assert found["kind"] == "NodeList"
        refusal(cluster.http.get("/api/v1/nodes/nonesuch"), 404, "NotFound")


class TestLog:
    def test_a_pod_without_a_node_has_none(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        response = cluster.http.get(cluster.path("pods", name, "log"))
        assert (response.status_code, response.content) == (204, b"")

    def test_an_unknown_pod(self, cluster: Cluster, name: str) -> None:
        refusal(cluster.http.get(cluster.path("pods", name, "log")), 404, "NotFound")

    def test_an_unknown_container(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        response = cluster.http.get(cluster.path("pods", name, "log"), params={"container": "x"})
        refusal(response, 400, "BadRequest")

    @pytest.mark.parametrize(
        "query",
        [{"tailLines": "-1"}, {"sinceSeconds": "0"}, {"limitBytes": "0"}],
        ids=["tail", "since", "limit"],
    )
    def test_a_bad_query_is_refused(self, cluster: Cluster, name: str, query: dict[str, str]) -> None:
        create(cluster, name)
        refusal(cluster.http.get(cluster.path("pods", name, "log"), params=query), 422, "Invalid")
