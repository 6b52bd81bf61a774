# SPDX-License-Identifier: Apache-2.0
"""What an executor needs of a Kubernetes API, held by the embedded cluster and by a real API server alike.

Here: the server, namespaces, and how objects are created and listed. Nothing needs a node: the pods stay
Pending. The files beside this one go on with writes, watches, and pods that really run.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.support.clusters import NOW, Cluster, create, pod, refusal, version_of

if TYPE_CHECKING:
    from collections.abc import Callable


class TestServer:
    @pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
    def test_health(self, cluster: Cluster, path: str) -> None:
        response = cluster.http.get(path)
        assert (response.status_code, response.text) == (200, "ok")

    def test_version(self, cluster: Cluster) -> None:
        version = cluster.http.get("/version").json()
        assert version["major"] == "1"
        assert version["gitVersion"].startswith("v1.")

    def test_discovery(self, cluster: Cluster) -> None:
        assert cluster.http.get("/api").json()["versions"] == ["v1"]
        assert cluster.http.get("/apis").json()["kind"] == "APIGroupList"
        found = {one["name"]: one for one in cluster.http.get("/api/v1").json()["resources"]}
        assert found["pods"]["namespaced"]
        assert not found["namespaces"]["namespaced"]
        assert {"create", "delete", "get", "list", "patch", "watch"} <= set(found["pods"]["verbs"])
        assert {"pods/status", "pods/log", "secrets", "events", "nodes"} <= found.keys()

    def test_a_wrong_token_is_refused(self, cluster: Cluster) -> None:
        headers = {"Authorization": "Bearer wrong"}
        refusal(cluster.http.get(cluster.path("pods"), headers=headers), 401, "Unauthorized")

    def test_an_unknown_path_is_refused(self, cluster: Cluster) -> None:
        refusal(cluster.http.get("/api/v1/nonesuch"), 404, "NotFound")
        refusal(cluster.http.get(cluster.path("nonesuch")), 404, "NotFound")

    def test_an_unserved_method_is_refused(self, cluster: Cluster) -> None:
        refusal(cluster.http.put(cluster.path("pods"), json={}), 405, "MethodNotAllowed")


class TestNamespaces:
    def test_default_is_there(self, cluster: Cluster) -> None:
        assert cluster.api.read_namespace("default").status.phase == "Active"
        names = [found.metadata.name for found in cluster.api.list_namespace().items]
        assert {"default", cluster.namespace} <= set(names)

    def test_a_second_of_the_name_is_refused(self, cluster: Cluster) -> None:
        response = cluster.http.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        assert refusal(response, 409, "AlreadyExists")["details"] == {"name": "default", "kind": "namespaces"}

    def test_a_bad_name_is_refused(self, cluster: Cluster) -> None:
        response = cluster.http.post("/api/v1/namespaces", json={"metadata": {"name": "A_b"}})
        assert refusal(response, 422, "Invalid")["details"]["causes"][0]["field"] == "metadata.name"

    def test_an_unknown_one(self, cluster: Cluster, name: str) -> None:
        status = refusal(cluster.http.get(f"/api/v1/namespaces/{name}"), 404, "NotFound")
        assert status["details"] == {"name": name, "kind": "namespaces"}
        pods = f"/api/v1/namespaces/{name}/pods"
        assert cluster.http.get(pods).json()["items"] == []
        assert (
            refusal(cluster.http.post(pods, json=pod(name)), 404, "NotFound")["details"]["kind"]
            == "namespaces"
        )


class TestCreate:
    def test_a_pod_gets_its_identity_and_waits(self, cluster: Cluster, name: str) -> None:
        created = create(cluster, name, {"a": "b"})
        assert (created["kind"], created["apiVersion"]) == ("Pod", "v1")
        metadata = created["metadata"]
        assert str(uuid.UUID(metadata["uid"])) == metadata["uid"]
        assert int(metadata["resourceVersion"]) > 0
        assert metadata["creationTimestamp"].endswith("Z")
        assert metadata["labels"] == {"a": "b"}
        assert metadata["namespace"] == cluster.namespace
        assert created["status"]["phase"] == "Pending"
        assert created["spec"]["terminationGracePeriodSeconds"] == 30
        assert created["spec"]["restartPolicy"] == "Never"
        read = cluster.http.get(cluster.path("pods", name)).json()
        assert read == created

    def test_the_real_client_creates_and_reads(self, cluster: Cluster, name: str) -> None:
        created = cluster.api.create_namespaced_pod(cluster.namespace, pod(name))
        read = cluster.api.read_namespaced_pod(name, cluster.namespace)
        assert read.metadata.uid == created.metadata.uid
        assert read.metadata.creation_timestamp.utcoffset() is not None
        assert read.status.phase == "Pending"

    def test_versions_rise_over_all_objects(self, cluster: Cluster, name: str) -> None:
        first = create(cluster, name)
        secret = cluster.http.post(cluster.path("secrets"), json={"metadata": {"name": name}}).json()
        second = create(cluster, f"{name}-2")
        versions = [int(found["metadata"]["resourceVersion"]) for found in (first, secret, second)]
        assert versions == sorted(set(versions))
        assert int(version_of(cluster)) >= versions[-1]

    def test_a_second_of_the_name_is_refused(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        status = refusal(cluster.http.post(cluster.path("pods"), json=pod(name)), 409, "AlreadyExists")
        assert status["message"] == f'pods "{name}" already exists'
        assert status["details"] == {"name": name, "kind": "pods"}

    def test_the_real_client_tells_a_second_of_the_name(self, cluster: Cluster, name: str) -> None:
        create(cluster, name)
        with pytest.raises(ApiException) as caught:
            cluster.api.create_namespaced_pod(cluster.namespace, pod(name))
        assert caught.value.status == 409
        assert json.loads(caught.value.body)["reason"] == "AlreadyExists"

    def test_a_name_is_generated(self, cluster: Cluster, name: str) -> None:
        body = pod(name)
        body["metadata"] = {"generateName": f"{name}-"}
        names = {
            cluster.http.post(cluster.path("pods"), json=body).json()["metadata"]["name"] for _ in range(2)
        }
        assert len(names) == 2
        assert all(found.startswith(f"{name}-") and len(found) == len(name) + 6 for found in names)

    def test_what_the_cluster_gives_is_not_taken_from_the_caller(self, cluster: Cluster, name: str) -> None:
        body = pod(name)
        body["metadata"]["uid"] = "mine"
        body["status"] = {"phase": "Running"}
        created = cluster.http.post(cluster.path("pods"), json=body).json()
        assert created["metadata"]["uid"] != "mine"
        assert created["status"]["phase"] == "Pending"

    def test_a_dry_run_stores_nothing(self, cluster: Cluster, name: str) -> None:
        response = cluster.http.post(cluster.path("pods"), params={"dryRun": "All"}, json=pod(name))
        assert response.status_code == 201
        refusal(cluster.http.get(cluster.path("pods", name)), 404, "NotFound")

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            pytest.param(lambda body: body["metadata"].pop("name"), "metadata.name", id="no-name"),
            pytest.param(lambda body: body.pop("metadata"), "metadata.name", id="no-metadata"),
            pytest.param(lambda body: body["metadata"].update(name="A_b"), "metadata.name", id="bad-name"),
            pytest.param(
                lambda body: body["metadata"].update(name="a" * 254), "metadata.name", id="long-name"
            ),
            pytest.param(lambda body: body.pop("spec"), "spec.containers", id="no-spec"),
            pytest.param(lambda body: body["spec"].pop("containers"), "spec.containers", id="no-containers"),
            pytest.param(lambda body: body["spec"].update(containers=[]), "spec.containers", id="empty"),
            pytest.param(
                lambda body: _base(body).pop("name"), "spec.containers[0].name", id="container-name"
            ),
            pytest.param(
                lambda body: _base(body).update(name="A_b"), "spec.containers[0].name", id="bad-container"
            ),
            pytest.param(lambda body: _base(body).pop("image"), "spec.containers[0].image", id="no-image"),
            pytest.param(
                lambda body: body["spec"]["containers"].append(_base(body)),
                "spec.containers[1].name",
                id="twice",
            ),
            pytest.param(
                lambda body: _base(body).update(env=[{"name": "a b"}]),
                "spec.containers[0].env[0].name",
                id="env",
            ),
            pytest.param(
                lambda body: _base(body).update(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
                "spec.containers[0].volumeMounts[0].name",
                id="unknown-volume",
            ),
            pytest.param(
                lambda body: body["spec"].update(restartPolicy="x"), "spec.restartPolicy", id="policy"
            ),
            pytest.param(
                lambda body: body["spec"].update(activeDeadlineSeconds=0),
                "spec.activeDeadlineSeconds",
                id="deadline",
            ),
            pytest.param(lambda body: _label(body, "a", "b c"), "metadata.labels", id="label-with-space"),
            pytest.param(lambda body: _label(body, "a", "é"), "metadata.labels", id="label-not-ascii"),
            pytest.param(
                lambda body: _label(body, "a", "-b"), "metadata.labels", id="label-begins-with-dash"
            ),
            pytest.param(lambda body: _label(body, "a", "b" * 64), "metadata.labels", id="label-too-long"),
            pytest.param(lambda body: _label(body, "-a", "b"), "metadata.labels", id="bad-label-key"),
            pytest.param(lambda body: _label(body, "a/b/c", "b"), "metadata.labels", id="two-slashes-in-key"),
            pytest.param(
                lambda body: body["metadata"].update(annotations={"a b": "c"}),
                "metadata.annotations",
                id="annotation",
            ),
            pytest.param(
                lambda body: body["metadata"].update(annotations={"a": "b" * 262145}),
                "metadata.annotations",
                id="annotations-too-large",
            ),
            pytest.param(
                lambda body: body["metadata"].update(
                    ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "p"}]
                ),
                "metadata.ownerReferences.uid",
                id="owner-without-uid",
            ),
        ],
    )
    def test_an_invalid_pod_is_refused(
        self, cluster: Cluster, name: str, change: Callable[[dict[str, Any]], object], field: str
    ) -> None:
        body = pod(name)
        change(body)
        status = refusal(cluster.http.post(cluster.path("pods"), json=body), 422, "Invalid")
        assert status["details"]["kind"] == "Pod"
        assert field in [cause["field"] for cause in status["details"]["causes"]]

    def test_all_that_is_wrong_is_told(self, cluster: Cluster, name: str) -> None:
        body = pod(name)
        body["metadata"]["labels"] = {"-a": "b c"}
        body["spec"]["containers"] = []
        status = refusal(cluster.http.post(cluster.path("pods"), json=body), 422, "Invalid")
        fields = [cause["field"] for cause in status["details"]["causes"]]
        assert sorted(fields) == ["metadata.labels", "metadata.labels", "spec.containers"]

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda body: _label(body, "a", 1), id="label-a-number"),
            pytest.param(lambda body: body.update(spec="x"), id="spec-a-text"),
            pytest.param(lambda body: body["spec"].update(containers=["x"]), id="container-a-text"),
            pytest.param(lambda body: _base(body).update(command="x"), id="command-a-text"),
            pytest.param(lambda body: _base(body).update(env=[{"name": "A", "value": 1}]), id="env-a-number"),
            pytest.param(
                lambda body: _base(body).update(resources={"requests": {"memory": "lots"}}), id="quantity"
            ),
            pytest.param(lambda body: body.update(kind="Secret"), id="other-kind"),
            pytest.param(lambda body: body.update(apiVersion="v2"), id="other-version"),
            pytest.param(lambda body: body["metadata"].update(namespace="other"), id="other-namespace"),
        ],
    )
    def test_what_is_no_pod_is_refused(
        self, cluster: Cluster, name: str, change: Callable[[dict[str, Any]], object]
    ) -> None:
        body = pod(name)
        change(body)
        refusal(cluster.http.post(cluster.path("pods"), json=body), 400, "BadRequest")

    @pytest.mark.parametrize("content", [b"", b"{no", b"[]"])
    def test_what_is_no_object_is_refused(self, cluster: Cluster, content: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        response = cluster.http.post(cluster.path("pods"), content=content, headers=headers)
        refusal(response, 400, "BadRequest")

    def test_null_is_the_same_as_absent(self, cluster: Cluster, name: str) -> None:
        body = pod(name)
        body["metadata"] |= {"labels": None, "annotations": None, "creationTimestamp": None}
        response = cluster.http.post(cluster.path("pods"), json=body)
        assert response.status_code == 201
        assert "labels" not in response.json()["metadata"]

    def test_a_body_of_another_type_is_refused(self, cluster: Cluster) -> None:
        headers = {"Content-Type": "text/plain"}
        response = cluster.http.post(cluster.path("pods"), content=b"x", headers=headers)
        refusal(response, 415, "UnsupportedMediaType")

    def test_a_body_over_three_mebibytes_is_refused(self, cluster: Cluster) -> None:
        headers = {"Content-Type": "application/json"}
        content = b" " * (3 * 1024 * 1024 + 1)
        response = cluster.http.post(cluster.path("pods"), content=content, headers=headers)
        refusal(response, 413, "RequestEntityTooLarge")

    def test_an_object_too_large_to_store_is_refused(self, cluster: Cluster, name: str) -> None:
        body = pod(name)
        _base(body)["args"] = ["x" * 1_600_000]
        refusal(cluster.http.post(cluster.path("pods"), json=body), 500, None)


class TestGetAndList:
    def test_an_unknown_pod(self, cluster: Cluster, name: str) -> None:
        status = refusal(cluster.http.get(cluster.path("pods", name)), 404, "NotFound")
        assert status["message"] == f'pods "{name}" not found'
        assert status["details"] == {"name": name, "kind": "pods"}

    def test_a_list_is_sorted_and_its_items_have_no_kind(self, cluster: Cluster, name: str) -> None:
        for number in (2, 0, 1):
            create(cluster, f"{name}-{number}", {"test": name})
        found = cluster.http.get(cluster.path("pods"), params={"labelSelector": f"test={name}"}).json()
        assert (found["kind"], found["apiVersion"]) == ("PodList", "v1")
        assert [item["metadata"]["name"] for item in found["items"]] == [f"{name}-{n}" for n in range(3)]
        assert all("kind" not in item for item in found["items"])

    def test_a_list_of_all_namespaces(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, {"test": name})
        found = cluster.api.list_pod_for_all_namespaces(label_selector=f"test={name}").items
        assert [(item.metadata.namespace, item.metadata.name) for item in found] == [
            (cluster.namespace, name)
        ]

    @pytest.mark.parametrize(
        ("selector", "expected"),
        [
            ("i=1", "1"),
            ("i==1", "1"),
            ("i = 1", "1"),
            ("i!=1", "023"),
            ("i in (1,2)", "12"),
            ("i in ( 1 , 2 )", "12"),
            ("i notin (1,2)", "03"),
            ("i", "012"),
            ("!i", "3"),
            ("! i", "3"),
            ("i=", ""),
            ("i in (1,),even", ""),
            ("i>0", "12"),
            ("i<1", "0"),
            ("even,i!=0", "2"),
            ("even in (yes),i in (0,1,2)", "02"),
            ("nonesuch!=x", "0123"),
            ("nonesuch notin (x)", "0123"),
            ("example.com/key=a.b_c-d", "3"),
        ],
    )
    def test_labels_select(self, cluster: Cluster, selected: str, selector: str, expected: str) -> None:
        query = {"labelSelector": f"test={selected},{selector}"}
        items = cluster.http.get(cluster.path("pods"), params=query).json()["items"]
        assert [item["metadata"]["name"] for item in items] == [f"{selected}-{n}" for n in expected]

    @pytest.fixture
    def selected(self, cluster: Cluster) -> str:
        """Create four pods, once per cluster, and return the value of their label ``test``."""
        test = "selected"
        if cluster.http.get(cluster.path("pods", f"{test}-0")).status_code == 404:
            create(cluster, f"{test}-0", {"test": test, "i": "0", "even": "yes"})
            create(cluster, f"{test}-1", {"test": test, "i": "1"})
            create(cluster, f"{test}-2", {"test": test, "i": "2", "even": "yes"})
            create(cluster, f"{test}-3", {"test": test, "example.com/key": "a.b_c-d"})
        return test

    @pytest.mark.parametrize(
        "selector",
        ["a in (b", "a b", "a in b", ",", "a=b,", "a=b c", "-a=b", "a>x", "a=b)", "a=-b", "a in (b c)", "=b"],
    )
    def test_a_bad_label_selector_is_refused(self, cluster: Cluster, selector: str) -> None:
        for query in ({"labelSelector": selector}, {"labelSelector": selector, "watch": "true"}):
            refusal(cluster.http.get(cluster.path("pods"), params=query), 400, "BadRequest")

    @pytest.mark.parametrize(
        ("selector", "expected"),
        [
            ("metadata.name=selected-1", "1"),
            ("metadata.name!=selected-1", "023"),
            ("metadata.name==selected-1,status.phase=Pending", "1"),
            ("status.phase=Running", ""),
            ("spec.nodeName=", "0123"),
            ("spec.nodeName=x", ""),
            ("spec.restartPolicy=Never", "0123"),
            ("spec.schedulerName!=nobody", ""),
        ],
    )
    def test_fields_select(self, cluster: Cluster, selected: str, selector: str, expected: str) -> None:
        query = {"labelSelector": f"test={selected}", "fieldSelector": selector}
        items = cluster.http.get(cluster.path("pods"), params=query).json()["items"]
        assert [item["metadata"]["name"] for item in items] == [f"{selected}-{n}" for n in expected]

    @pytest.mark.parametrize("selector", ["spec.image=x", "metadata.labels.a=b", "status.phase"])
    def test_a_bad_field_selector_is_refused(self, cluster: Cluster, selector: str) -> None:
        response = cluster.http.get(cluster.path("pods"), params={"fieldSelector": selector})
        refusal(response, 400, "BadRequest")

    def test_chunks_show_one_state(self, cluster: Cluster, name: str) -> None:
        for number in range(5):
            create(cluster, f"{name}-{number}", {"test": name})
        query = {"labelSelector": f"test={name}", "limit": "2"}
        first = cluster.http.get(cluster.path("pods"), params=query).json()
        cluster.http.delete(cluster.path("pods", f"{name}-2"), params=NOW)
        create(cluster, f"{name}-2a", {"test": name})
        second = cluster.http.get(
            cluster.path("pods"), params={**query, "continue": first["metadata"]["continue"]}
        ).json()
        third = cluster.http.get(
            cluster.path("pods"), params={**query, "continue": second["metadata"]["continue"]}
        ).json()
        chunks = [[item["metadata"]["name"] for item in chunk["items"]] for chunk in (first, second, third)]
        assert chunks == [[f"{name}-0", f"{name}-1"], [f"{name}-2", f"{name}-3"], [f"{name}-4"]]
        versions = {chunk["metadata"]["resourceVersion"] for chunk in (first, second, third)}
        assert len(versions) == 1

    def test_chunks_tell_how_many_are_left(self, cluster: Cluster, name: str) -> None:
        path = f"/api/v1/namespaces/{cluster.namespace}/secrets"
        before = len(cluster.http.get(path).json()["items"])
        for number in range(3):
            cluster.http.post(path, json={"metadata": {"name": f"{name}-{number}"}}).raise_for_status()
        chunk = cluster.http.get(path, params={"limit": "1"}).json()
        assert chunk["metadata"]["remainingItemCount"] == before + 2
        rest = {"limit": "500", "continue": chunk["metadata"]["continue"]}
        last = cluster.http.get(path, params=rest).json()
        assert len(last["items"]) == before + 2
        assert "continue" not in last["metadata"]

    def test_the_real_client_lists_in_chunks(self, cluster: Cluster, name: str) -> None:
        for number in range(3):
            create(cluster, f"{name}-{number}", {"test": name})
        found, token = [], None
        while token != "":
            chunk = cluster.api.list_namespaced_pod(
                cluster.namespace, label_selector=f"test={name}", limit=2, _continue=token
            )
            found += [item.metadata.name for item in chunk.items]
            token = chunk.metadata._continue or ""
        assert found == [f"{name}-{number}" for number in range(3)]

    @pytest.mark.parametrize(
        "query",
        [{"limit": "x"}, {"continue": "garbage", "limit": "1"}, {"timeoutSeconds": "x", "watch": "true"}],
    )
    def test_a_bad_query_is_refused(self, cluster: Cluster, query: dict[str, str]) -> None:
        refusal(cluster.http.get(cluster.path("pods"), params=query), 400, "BadRequest")

    def test_a_version_in_the_future_is_refused(self, cluster: Cluster) -> None:
        response = cluster.http.get(cluster.path("pods"), params={"resourceVersion": "999999999"})
        status = refusal(response, 504, "Timeout")
        assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"

    def test_an_older_version_is_shown_exactly(self, cluster: Cluster, name: str) -> None:
        created = create(cluster, name, {"test": name})
        cluster.http.delete(cluster.path("pods", name), params=NOW)
        query = {
            "labelSelector": f"test={name}",
            "resourceVersion": created["metadata"]["resourceVersion"],
            "resourceVersionMatch": "Exact",
        }
        found = cluster.http.get(cluster.path("pods"), params=query).json()
        assert [item["metadata"]["uid"] for item in found["items"]] == [created["metadata"]["uid"]]
        assert found["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


def _base(body: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = body["spec"]["containers"][0]
    return container


def _label(body: dict[str, Any], key: str, value: object) -> None:
    body["metadata"]["labels"] = {key: value}
