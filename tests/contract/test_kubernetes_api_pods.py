# SPDX-License-Identifier: Apache-2.0
"""What an executor needs of a Kubernetes API: pods that really run, end, are stopped, and have logs."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clusters import (
    BOTH_WITH_NODE,
    MERGE,
    NOW,
    POD_TEMPLATE_VARIABLE,
    Cluster,
    kinds,
    refusal,
    version_of,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]
pytestmark = pytest.mark.parametrize("cluster", BOTH_WITH_NODE, indirect=True)


@pytest.fixture(autouse=True)
def _template(cluster: Cluster) -> None:
    if not cluster.has_pod_template:
        pytest.skip(f"{POD_TEMPLATE_VARIABLE} names no pod template")


def start(cluster: Cluster, name: str, *command: str, change: Callable[[Json], Any] | None = None) -> Json:
    """Create a pod that runs a command.

    :param change: changes the pod before it is created.
    """
    body = deepcopy(cluster.pod_template)
    body["metadata"] = {"name": name, "labels": {"test": name}}
    base(body)["command"] = list(command)
    if change is not None:
        change(body)
    response = cluster.http.post(cluster.path("pods"), json=body)
    assert response.status_code == 201, response.text
    return response.json()


def base(body: Json) -> Json:
    container: Json = body["spec"]["containers"][0]
    return container


def get(cluster: Cluster, name: str) -> Json:
    return cluster.http.get(cluster.path("pods", name)).json()


def wait_for_phase(cluster: Cluster, name: str, *phases: str) -> Json:
    """Return the pod once its phase is one of these."""

    def reached() -> Json | None:
        found = get(cluster, name)
        return found if found["status"]["phase"] in phases else None

    return wait_for(reached)


def wait_until_gone(cluster: Cluster, name: str) -> None:
    wait_for(lambda: cluster.http.get(cluster.path("pods", name)).status_code == 404)


def log(cluster: Cluster, name: str, **query: str) -> str:
    response = cluster.http.get(cluster.path("pods", name, "log"), params=query)
    assert response.status_code == 200, response.text
    return response.text


@contextmanager
def following(cluster: Cluster, name: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a log as they come."""
    path = cluster.path("pods", name, "log")
    with cluster.http.stream("GET", path, params={"follow": "true"}, timeout=60) as stream:
        yield stream.iter_lines()


def container_states(found: Json) -> list[Json]:
    return [container["state"] for container in found["status"]["containerStatuses"]]


def terminated(found: Json) -> Json:
    state: Json = container_states(found)[0]["terminated"]
    return state


class TestEnd:
    def test_success(self, cluster: Cluster, name: str) -> None:
        version = version_of(cluster)
        start(cluster, name, "true")
        seen = cluster.events(
            version,
            seconds=60,
            until=lambda events: events[-1]["object"]["status"]["phase"] in {"Succeeded", "Failed"},
            labelSelector=f"test={name}",
        )
        phases = [event["object"]["status"]["phase"] for event in seen]
        assert phases[0] == "Pending"
        assert phases[-1] == "Succeeded"
        # A real node may report the end of a short pod without its start.
        assert [phase for phase in phases if phase not in {"Pending", "Succeeded"}] in ([], ["Running"])
        assert "nodeName" not in seen[0]["object"]["spec"]
        found = seen[-1]["object"]
        assert found["spec"]["nodeName"]
        status = found["status"]
        assert {"hostIP", "podIP", "startTime"} <= status.keys()
        conditions = {one["type"]: (one["status"], one.get("reason")) for one in status["conditions"]}
        assert conditions["PodScheduled"] == ("True", None)
        assert conditions["Initialized"] == ("True", "PodCompleted")
        assert conditions["Ready"] == ("False", "PodCompleted")
        (container,) = status["containerStatuses"]
        assert (container["name"], container["ready"], container["restartCount"]) == ("base", False, 0)
        ended = container["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
        assert ended["startedAt"] <= ended["finishedAt"]

    def test_failure(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sh", "-c", "exit 3")
        found = wait_for_phase(cluster, name, "Succeeded", "Failed")
        assert found["status"]["phase"] == "Failed"
        assert (terminated(found)["exitCode"], terminated(found)["reason"]) == (3, "Error")
        cluster.http.delete(cluster.path("pods", name))
        refusal(cluster.http.get(cluster.path("pods", name)), 404, "NotFound")

    def test_a_program_that_does_not_exist(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "/nonesuch")
        found = wait_for_phase(cluster, name, "Succeeded", "Failed")
        assert found["status"]["phase"] == "Failed"
        assert terminated(found)["exitCode"] in {127, 128}
        assert terminated(found)["reason"] in {"ContainerCannotRun", "StartError"}
        assert "/nonesuch" in terminated(found)["message"]

    def test_a_deadline(self, cluster: Cluster, name: str) -> None:
        def with_deadline(body: Json) -> None:
            body["spec"] |= {"activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1}

        start(cluster, name, "sleep", "100", change=with_deadline)
        status = wait_for_phase(cluster, name, "Succeeded", "Failed")["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")

    def test_events_tell_of_its_start(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "true")
        wait_for_phase(cluster, name, "Succeeded", "Failed")
        query = {"fieldSelector": f"involvedObject.name={name}"}
        items = cluster.http.get(cluster.path("events"), params=query).json()["items"]
        assert {"Scheduled", "Started"} <= {item["reason"] for item in items}


class TestDelete:
    def test_a_running_pod_is_marked_stopped_and_taken_away(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sh", "-c", "echo hello; sleep 30")
        running = wait_for_phase(cluster, name, "Running")
        (container,) = running["status"]["containerStatuses"]
        assert container["ready"]
        assert container["state"]["running"]["startedAt"]
        conditions = {one["type"]: one["status"] for one in running["status"]["conditions"]}
        assert conditions["Ready"] == "True"
        wait_for(lambda: log(cluster, name) == "hello\n")
        version = version_of(cluster)
        marked = cluster.http.delete(cluster.path("pods", name), params={"gracePeriodSeconds": "1"}).json()
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 1
        assert marked["status"]["phase"] == "Running"
        seen = cluster.events(
            version,
            seconds=60,
            until=lambda events: events[-1]["type"] == "DELETED",
            labelSelector=f"test={name}",
        )
        assert seen[0]["object"] == marked
        assert set(kinds(seen)[:-1]) == {"MODIFIED"}
        last = seen[-1]["object"]
        assert last["status"]["phase"] == "Failed"
        # A real node may have removed the container before it could read the exit code.
        codes = {state["terminated"]["exitCode"] for state in container_states(last) if "terminated" in state}
        assert codes <= {137, 143}
        assert codes or not cluster.embedded
        refusal(cluster.http.get(cluster.path("pods", name)), 404, "NotFound")

    def test_the_process_is_asked_first(self, cluster: Cluster, name: str) -> None:
        script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
        start(cluster, name, "sh", "-c", script)
        wait_for_phase(cluster, name, "Running")
        wait_for(lambda: log(cluster, name) == "ready\n")
        with following(cluster, name) as lines:
            cluster.http.delete(cluster.path("pods", name), params={"gracePeriodSeconds": "20"})
            # Some container runtimes add a line of their own when the container goes.
            assert list(lines)[:2] == ["ready", "asked"]
        wait_until_gone(cluster, name)

    def test_a_process_that_does_not_listen_is_killed(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
        wait_for_phase(cluster, name, "Running")
        wait_for(lambda: log(cluster, name) == "ready\n")
        began = time.monotonic()
        cluster.http.delete(cluster.path("pods", name), params={"gracePeriodSeconds": "2"})
        wait_until_gone(cluster, name)
        assert time.monotonic() - began > 1.5

    def test_a_forced_deletion_takes_it_away_at_once(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sleep", "30")
        wait_for_phase(cluster, name, "Running")
        cluster.http.delete(cluster.path("pods", name), params=NOW)
        refusal(cluster.http.get(cluster.path("pods", name)), 404, "NotFound")

    def test_its_name_can_be_used_again(self, cluster: Cluster, name: str) -> None:
        first = start(cluster, name, "sleep", "30")
        wait_for_phase(cluster, name, "Running")
        cluster.http.delete(cluster.path("pods", name), params=NOW)
        second = start(cluster, name, "sh", "-c", "echo second")
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        found = wait_for_phase(cluster, name, "Succeeded", "Failed")
        assert found["metadata"]["uid"] == second["metadata"]["uid"]
        assert found["status"]["phase"] == "Succeeded"
        assert log(cluster, name) == "second\n"


class TestLog:
    def test_what_a_reader_asks_for(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sh", "-c", "echo one; echo two; printf three")
        wait_for_phase(cluster, name, "Succeeded")
        assert log(cluster, name) == "one\ntwo\nthree"
        assert log(cluster, name, container="base") == "one\ntwo\nthree"
        assert log(cluster, name, tailLines="2") == "two\nthree"
        assert log(cluster, name, tailLines="0") == ""
        assert log(cluster, name, limitBytes="5") == "one\nt"
        assert log(cluster, name, follow="true") == "one\ntwo\nthree"
        stamped = log(cluster, name, timestamps="true", tailLines="2")
        assert re.fullmatch(r"\S+T\S+Z two\n\S+T\S+Z three", stamped)
        assert log(cluster, name, sinceSeconds="3600") == "one\ntwo\nthree"
        previous = cluster.http.get(cluster.path("pods", name, "log"), params={"previous": "true"})
        refusal(previous, 400, "BadRequest")
        read = cluster.api.read_namespaced_pod_log(
            name, cluster.namespace, tail_lines=2, _preload_content=False
        )
        assert read.data == b"two\nthree"

    def test_old_lines_are_left_out(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sh", "-c", "echo one; sleep 3; echo two; sleep 30")
        wait_for_phase(cluster, name, "Running")
        wait_for(lambda: log(cluster, name) == "one\ntwo\n")
        assert log(cluster, name, sinceSeconds="2") == "two\n"
        cluster.http.delete(cluster.path("pods", name), params=NOW)

    def test_a_long_line_stays_one(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "python3", "-c", "print('x' * 100000); print('end')")
        wait_for_phase(cluster, name, "Succeeded")
        assert log(cluster, name) == "x" * 100000 + "\nend\n"

    def test_a_follower_sees_lines_as_they_come(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sh", "-c", "echo one; sleep 30")
        wait_for_phase(cluster, name, "Running")
        with following(cluster, name) as lines:
            assert next(lines) == "one"
            assert get(cluster, name)["status"]["phase"] == "Running"
            cluster.http.delete(cluster.path("pods", name), params={"gracePeriodSeconds": "1"})
            assert "one" not in list(lines)

    def test_a_follower_may_leave(self, cluster: Cluster, name: str) -> None:
        start(cluster, name, "sh", "-c", "while :; do echo line; sleep 0.1; done")
        wait_for_phase(cluster, name, "Running")
        with following(cluster, name) as lines:
            assert next(lines) == "line"
        cluster.http.delete(cluster.path("pods", name), params=NOW)


class TestSecrets:
    def put(self, cluster: Cluster, name: str) -> None:
        body = {"metadata": {"name": name}, "stringData": {"input.json": '{"a": 1}', "word": "hidden"}}
        cluster.http.post(cluster.path("secrets"), json=body).raise_for_status()

    def test_a_volume_and_variables(self, cluster: Cluster, name: str) -> None:
        def with_secret(body: Json) -> None:
            container = base(body)
            container["env"] = [
                {"name": "PLAIN", "value": "plain"},
                {"name": "BOTH", "value": "$(PLAIN)-$(NONESUCH)-$$(PLAIN)"},
                {"name": "HIDDEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "word"}}},
                {
                    "name": "MAYBE",
                    "valueFrom": {"secretKeyRef": {"name": name, "key": "x", "optional": True}},
                },
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ]
            container["args"] = ["/mnt/input.json", "$(PLAIN)"]
            container.setdefault("volumeMounts", []).append({"name": "workload", "mountPath": "/mnt"})
            volume = {"name": "workload", "secret": {"secretName": name}}
            body["spec"].setdefault("volumes", []).append(volume)

        self.put(cluster, name)
        script = 'cat "$0"; echo; echo "$1 $BOTH $HIDDEN ${MAYBE-unset} $NAME"'
        start(cluster, name, "sh", "-c", script, change=with_secret)
        wait_for_phase(cluster, name, "Succeeded", "Failed")
        assert log(cluster, name) == f'{{"a": 1}}\nplain plain-$(NONESUCH)-$(PLAIN) hidden unset {name}\n'

    def test_a_missing_secret_for_a_variable_is_waited_for(self, cluster: Cluster, name: str) -> None:
        def with_secret(body: Json) -> None:
            source = {"secretKeyRef": {"name": name, "key": "word"}}
            base(body)["env"] = [{"name": "HIDDEN", "valueFrom": source}]

        start(cluster, name, "sh", "-c", "echo $HIDDEN", change=with_secret)

        def refused() -> Json | None:
            containers = get(cluster, name)["status"].get("containerStatuses", [])
            waiting: Json = containers[0]["state"].get("waiting", {}) if containers else {}
            return waiting if waiting.get("reason") == "CreateContainerConfigError" else None

        assert "not found" in wait_for(refused)["message"]
        assert get(cluster, name)["status"]["phase"] == "Pending"
        response = cluster.http.get(cluster.path("pods", name, "log"))
        refusal(response, 400, "BadRequest")
        self.put(cluster, name)
        wait_for_phase(cluster, name, "Succeeded")
        assert log(cluster, name) == "hidden\n"

    def test_a_missing_secret_for_a_volume_is_waited_for(self, cluster: Cluster, name: str) -> None:
        def with_secret(body: Json) -> None:
            base(body).setdefault("volumeMounts", []).append({"name": "workload", "mountPath": "/mnt"})
            volume = {"name": "workload", "secret": {"secretName": name}}
            body["spec"].setdefault("volumes", []).append(volume)

        start(cluster, name, "sh", "-c", "cat /mnt/word", change=with_secret)

        def told() -> bool:
            query = {"fieldSelector": f"involvedObject.name={name},reason=FailedMount"}
            return bool(cluster.http.get(cluster.path("events"), params=query).json()["items"])

        wait_for(told)
        found = get(cluster, name)["status"]
        assert found["phase"] == "Pending"
        assert found["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
        self.put(cluster, name)
        wait_for_phase(cluster, name, "Succeeded")
        assert log(cluster, name) == "hidden"

    def test_a_pod_that_waits_for_one_can_be_deleted(self, cluster: Cluster, name: str) -> None:
        def with_secret(body: Json) -> None:
            source = {"secretKeyRef": {"name": name, "key": "word"}}
            base(body)["env"] = [{"name": "HIDDEN", "valueFrom": source}]

        start(cluster, name, "true", change=with_secret)
        wait_for(lambda: get(cluster, name)["status"].get("containerStatuses"))
        cluster.http.delete(cluster.path("pods", name), params={"gracePeriodSeconds": "1"})
        wait_until_gone(cluster, name)


def test_labels_of_a_running_pod_change(cluster: Cluster, name: str) -> None:
    start(cluster, name, "sleep", "30")
    wait_for_phase(cluster, name, "Running")
    body = {"metadata": {"labels": {"owner": "two"}}}
    cluster.http.patch(cluster.path("pods", name), json=body, headers=MERGE).raise_for_status()
    found = cluster.http.get(cluster.path("pods"), params={"labelSelector": f"test={name},owner=two"}).json()
    assert [item["status"]["phase"] for item in found["items"]] == ["Running"]
    cluster.http.delete(cluster.path("pods", name), params=NOW)


def test_many_pods_of_one_name_become_one(cluster: Cluster, name: str) -> None:
    codes = []

    def create() -> None:
        body = deepcopy(cluster.pod_template)
        body["metadata"] = {"name": name}
        base(body)["command"] = ["sh", "-c", "echo once"]
        codes.append(cluster.http.post(cluster.path("pods"), json=body).status_code)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [201, *([409] * 7)]
    wait_for_phase(cluster, name, "Succeeded")
    assert log(cluster, name) == "once\n"
