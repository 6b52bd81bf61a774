# SPDX-License-Identifier: Apache-2.0
"""Kubernetes clusters for the contract suite: the embedded one, and that of ``KUBECONFIG``."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.config import new_client_from_config

from tests.support import processes

POD_TEMPLATE_VARIABLE = "DISPATCHER_TESTS_POD_TEMPLATE"
"""File with a pod template whose container sees the files of this machine."""

READY = "embedded cluster ready"
START_SECONDS = 30
NOBODY = "nobody"
"""Name of a scheduler that does not exist: such pods stay Pending, and no node touches them."""

MERGE = {"Content-Type": "application/merge-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
NOW = {"gracePeriodSeconds": "0"}

BOTH = ["embedded", pytest.param("real", marks=pytest.mark.needs("kubernetes"))]
BOTH_WITH_NODE = ["embedded", pytest.param("real", marks=pytest.mark.needs("node"))]
"""Parameters of the fixture ``cluster``."""

Json = dict[str, Any]
_PLAIN_POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "base", "image": "none"}]},
}


@dataclass(frozen=True)
class Cluster:
    """A cluster, a namespace of the test's own, and the two ways to talk to it.

    :param embedded: whether it is the embedded one.
    :param namespace: exists, and holds nothing that others made.
    :param client: the real client.
    :param http: plain HTTP to the same server, with the token.
    :param pod_template: template of pods that run.
    :param has_pod_template: whether their containers see the files of this machine.
    """

    embedded: bool
    namespace: str
    client: ApiClient
    http: httpx.Client
    pod_template: Json
    has_pod_template: bool

    @property
    def api(self) -> CoreV1Api:
        """Return the core API of the real client."""
        return CoreV1Api(self.client)

    def path(self, *steps: str) -> str:
        """Return the path of something in the namespace."""
        return "/".join(["/api/v1/namespaces", self.namespace, *steps])

    def events(
        self,
        version: str | None = None,
        *,
        until: Callable[[list[Json]], bool] = lambda _seen: False,
        resource: str = "pods",
        seconds: int = 5,
        **query: str,
    ) -> list[Json]:
        """Watch from a version on and return the events that were seen.

        :param version: ``resourceVersion``; the present objects come first when absent.
        :param until: told all events so far; the watch ends when it says yes.
        :param seconds: or ends after so long.
        """
        query |= {"watch": "true", "timeoutSeconds": str(seconds)}
        if version is not None:
            query["resourceVersion"] = version
        seen: list[Json] = []
        with self.http.stream("GET", self.path(resource), params=query) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                seen.append(json.loads(line))
                if until(seen):
                    break
        return seen


def pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    """Return a pod that no node runs."""
    body = deepcopy(_PLAIN_POD)
    body["metadata"] = {"name": name, "labels": labels or {}}
    body["spec"] |= {"schedulerName": NOBODY, **spec}
    return body


def wait_for(condition: Callable[[], Any], seconds: float = 90) -> Any:
    """Return what ``condition`` gives as soon as it is true.

    :raises AssertionError: it is not after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true after {seconds} s"
        time.sleep(0.05)
    return found


@contextmanager
def embedded_cluster(directory: Path, *arguments: str) -> Iterator[tuple[Path, processes.ChildProcess]]:
    """Start an embedded cluster; yields its kubeconfig and its process.

    :param directory: for its log and the kubeconfig.
    :param arguments: further arguments of its command.
    """
    kubeconfig = directory / f"kubeconfig-{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "dispatcher.local.cluster", "--kubeconfig", str(kubeconfig), *arguments]
    with started(command, directory, READY) as process:
        yield kubeconfig, process


@contextmanager
def started(
    command: Sequence[str], directory: Path, ready: str, env: Mapping[str, str] | None = None
) -> Iterator[processes.ChildProcess]:
    """Start a command and wait until its output has the ready text; it is stopped at the end.

    :param directory: its working directory, also for its log.
    :param env: its environment; this process's own when absent.
    """
    log = directory / f"log-{secrets.token_hex(4)}"
    process = processes.start(command, log, env or os.environ, cwd=directory)
    try:
        process.wait_until(lambda: ready in log.read_text(), START_SECONDS)
        yield process
    finally:
        process.stop()


@contextmanager
def connected(kubeconfig: Path, *, embedded: bool) -> Iterator[Cluster]:
    """Connect to a cluster, with a namespace that is made for it and deleted at the end."""
    config = yaml.safe_load(kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]["server"]
    token = config["users"][0]["user"]["token"]
    namespace = f"dispatcher-contract-{secrets.token_hex(4)}"
    headers = {"Authorization": f"Bearer {token}"}
    with (
        new_client_from_config(str(kubeconfig)) as client,
        httpx.Client(base_url=server, headers=headers, verify=False, timeout=30) as http,
    ):
        http.post("/api/v1/namespaces", json={"metadata": {"name": namespace}}).raise_for_status()
        file = None if embedded else os.environ.get(POD_TEMPLATE_VARIABLE)
        template = yaml.safe_load(Path(file).read_text()) if file else _PLAIN_POD
        cluster = Cluster(embedded, namespace, client, http, template, embedded or bool(file))
        try:
            yield cluster
        finally:
            # A test may have ended the embedded cluster.
            with suppress(*([httpx.TransportError] if embedded else [])):
                http.delete(cluster.path("pods"), params=NOW)
                http.delete(f"/api/v1/namespaces/{namespace}")


def create(cluster: Cluster, name: str, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    """Create a pod that no node runs."""
    response = cluster.http.post(cluster.path("pods"), json=pod(name, labels, **spec))
    assert response.status_code == 201, response.text
    return response.json()


def version_of(cluster: Cluster, resource: str = "pods") -> str:
    """Return the present version of a resource."""
    return cluster.http.get(cluster.path(resource)).json()["metadata"]["resourceVersion"]


def refusal(response: httpx.Response, code: int, reason: str | None) -> Json:
    """Expect a Status and return it."""
    body = response.json()
    assert response.status_code == code, body
    assert (body["kind"], body["apiVersion"], body["status"]) == ("Status", "v1", "Failure")
    assert (body["code"], body.get("reason")) == (code, reason), body
    assert body["message"]
    return body


def kinds(events: list[Json]) -> list[str]:
    """Return what happened, without the objects."""
    return [event["type"] for event in events]
