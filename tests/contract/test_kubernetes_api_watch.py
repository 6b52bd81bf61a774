# SPDX-License-Identifier: Apache-2.0
"""What an executor needs of a Kubernetes API: watches from any version, and versions that are forgotten."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import watch
from kubernetes.client.exceptions import ApiException

from tests.support.clusters import (
    BOTH,
    MERGE,
    NOW,
    Cluster,
    connected,
    create,
    embedded_cluster,
    kinds,
    pod,
    refusal,
    version_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def named(name: str) -> dict[str, str]:
    """Select one object."""
    return {"fieldSelector": f"metadata.name={name}"}


class TestWatch:
    def test_all_that_happened_since_a_version(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster)
        created = create(cluster, name)
        path = cluster.path("pods", name)
        cluster.http.patch(path, json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE)
        cluster.http.patch(f"{path}/status", json={"status": {"phase": "Running"}}, headers=MERGE)
        cluster.http.delete(path)
        seen = cluster.events(version, until=lambda events: events[-1]["type"] == "DELETED", **named(name))
        assert kinds(seen) == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
        assert seen[0]["object"] == created
        assert "deletionTimestamp" in seen[3]["object"]["metadata"]
        assert {event["object"]["metadata"]["uid"] for event in seen} == {created["metadata"]["uid"]}
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
        assert versions == sorted(set(versions))

    def test_the_present_objects_come_first_without_a_version(self, cluster: Cluster, name: str) -> None:
        created = create(cluster, name, {"test": name})
        for version in (None, "0"):
            seen = cluster.events(version, until=bool, labelSelector=f"test={name}")
            assert kinds(seen) == ["ADDED"]
            assert seen[0]["object"] == created

    def test_what_happens_while_watching(self, cluster: Cluster, name: str) -> None:
        def on_event(events: list[dict[str, Any]]) -> bool:
            if len(events) == 1:
                cluster.http.delete(cluster.path("pods", name), params=NOW)
            return events[-1]["type"] == "DELETED"

        create(cluster, name, {"test": name})
        seen = cluster.events(until=on_event, labelSelector=f"test={name}")
        assert kinds(seen) == ["ADDED", "MODIFIED", "DELETED"]

    def test_it_goes_on_from_the_version_of_any_event(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster)
        create(cluster, name)
        path = cluster.path("pods", name)
        for value in "abc":
            cluster.http.patch(path, json={"metadata": {"labels": {"step": value}}}, headers=MERGE)
        whole = cluster.events(version, until=lambda events: len(events) == 4, **named(name))
        for number, event in enumerate(whole[:-1], start=1):
            later = cluster.events(
                event["object"]["metadata"]["resourceVersion"],
                until=lambda events, number=number: len(events) == 4 - number,
                **named(name),
            )
            assert later == whole[number:]

    def test_leaving_the_selector_is_a_deletion_for_it(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster)
        create(cluster, name, {"test": name, "step": "a"})
        path = cluster.path("pods", name)
        for value in "bac":
            cluster.http.patch(path, json={"metadata": {"labels": {"step": value}}}, headers=MERGE)
        cluster.http.delete(path, params=NOW)
        seen = cluster.events(version, seconds=1, labelSelector=f"test={name},step=a")
        assert kinds(seen) == ["ADDED", "DELETED", "ADDED", "DELETED"]
        # A deletion shows the object as the selector saw it last, with the version of the change.
        assert [event["object"]["metadata"]["labels"]["step"] for event in seen] == ["a"] * 4
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
        assert versions == sorted(set(versions))

    def test_fields_select(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster)
        create(cluster, name, {"test": name})
        for phase in ("Running", "Failed"):
            body = {"status": {"phase": phase}}
            cluster.http.patch(f"{cluster.path('pods', name)}/status", json=body, headers=MERGE)
        query = {"labelSelector": f"test={name}", "fieldSelector": "status.phase=Running"}
        seen = cluster.events(version, until=lambda events: len(events) == 2, **query)
        assert kinds(seen) == ["ADDED", "DELETED"]

    def test_it_ends_in_time(self, cluster: Cluster) -> None:
        assert cluster.events(version_of(cluster), seconds=1, labelSelector="test=nonesuch") == []

    def test_only_its_namespace_is_seen(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster)
        body = pod(name)
        try:
            cluster.http.post("/api/v1/namespaces/default/pods", json=body).raise_for_status()
            assert cluster.events(version, seconds=1, **named(name)) == []
        finally:
            cluster.http.delete(f"/api/v1/namespaces/default/pods/{name}", params=NOW)

    def test_the_real_client_watches_and_goes_on(self, cluster: Cluster, name: str) -> None:
        create(cluster, name, {"test": name})
        watcher = watch.Watch()
        query = {"label_selector": f"test={name}", "timeout_seconds": 5}
        for event in watcher.stream(cluster.api.list_namespaced_pod, cluster.namespace, **query):
            assert (event["type"], event["object"].metadata.name) == ("ADDED", name)
            watcher.stop()
        version = watcher.resource_version
        cluster.http.delete(cluster.path("pods", name), params=NOW)
        seen = []
        again = watch.Watch()
        query["resource_version"] = version
        for event in again.stream(cluster.api.list_namespaced_pod, cluster.namespace, **query):
            seen.append(event["type"])
            if event["type"] == "DELETED":
                again.stop()
        assert seen == ["MODIFIED", "DELETED"]

    def test_secrets_are_watched_too(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster, "secrets")
        cluster.http.post(cluster.path("secrets"), json={"metadata": {"name": name}}).raise_for_status()
        cluster.http.delete(cluster.path("secrets", name))
        seen = cluster.events(
            version, resource="secrets", until=lambda events: len(events) == 2, **named(name)
        )
        assert kinds(seen) == ["ADDED", "DELETED"]

    def test_a_bookmark_tells_a_version_to_go_on_from(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster)
        create(cluster, name)
        seen = cluster.events(
            version,
            seconds=2,
            until=lambda events: events[-1]["type"] == "BOOKMARK",
            allowWatchBookmarks="true",
            **named(name),
        )
        assert kinds(seen)[0] == "ADDED"
        # A server may send bookmarks, but need not.
        assert kinds(seen)[1:] == ["BOOKMARK"] or (kinds(seen)[1:] == [] and not cluster.embedded)
        for bookmark in (event["object"] for event in seen[1:]):
            assert (bookmark["kind"], bookmark["apiVersion"]) == ("Pod", "v1")
            assert int(bookmark["metadata"]["resourceVersion"]) > int(version)


ANCIENT = {"resourceVersion": "1", "resourceVersionMatch": "Exact"}


@pytest.fixture(params=BOTH, scope="module")
def forgetful(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if request.param == "real":
        with connected(Path(os.environ["KUBECONFIG"]), embedded=False) as cluster:
            if cluster.http.get(cluster.path("pods"), params=ANCIENT).status_code == 200:
                pytest.skip("this API server still knows its whole history")
            yield cluster
    else:
        directory = tmp_path_factory.mktemp("forgetful")
        with (
            embedded_cluster(directory, "--history", "3") as (kubeconfig, _process),
            connected(kubeconfig, embedded=True) as cluster,
        ):
            for number in range(4):
                create(cluster, f"old-{number}")
                body = {"metadata": {"name": f"old-{number}"}, "involvedObject": {}}
                body["involvedObject"] = {"namespace": cluster.namespace}
                cluster.http.post(cluster.path("events"), json=body).raise_for_status()
            yield cluster


class TestForgottenVersions:
    """A real server forgets after minutes; where it still knows everything, these are skipped."""

    def test_a_list_of_one_is_gone(self, forgetful: Cluster) -> None:
        refusal(forgetful.http.get(forgetful.path("pods"), params=ANCIENT), 410, "Expired")

    def test_the_rest_of_a_list_is_gone_but_can_be_had_from_the_present(self, forgetful: Cluster) -> None:
        token = {"v": "meta.k8s.io/v1", "rv": 1, "start": "old\0"}
        query = {"limit": "1", "continue": base64.urlsafe_b64encode(json.dumps(token).encode()).decode()}
        status = refusal(forgetful.http.get(forgetful.path("pods"), params=query), 410, "Expired")
        query["continue"] = status["metadata"]["continue"]
        assert forgetful.http.get(forgetful.path("pods"), params=query).status_code == 200

    def test_a_watch_from_one_is_gone(self, forgetful: Cluster) -> None:
        # Of events a real server keeps no history beyond that of its database.
        seen = forgetful.events("1", resource="events")
        assert kinds(seen) == ["ERROR"]
        status = seen[0]["object"]
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")

    def test_the_real_client_tells_so(self, forgetful: Cluster) -> None:
        watcher = watch.Watch()
        with pytest.raises(ApiException) as caught:
            for _event in watcher.stream(
                forgetful.api.list_namespaced_event,
                forgetful.namespace,
                resource_version="1",
                timeout_seconds=5,
            ):
                pass
        assert caught.value.status == 410

    def test_a_watch_goes_on_after_a_new_list(self, forgetful: Cluster, name: str) -> None:
        version = version_of(forgetful)
        create(forgetful, name)
        seen = forgetful.events(version, until=bool, **named(name))
        assert [event["object"]["metadata"]["name"] for event in seen] == [name]
