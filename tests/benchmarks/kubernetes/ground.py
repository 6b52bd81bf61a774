# SPDX-License-Identifier: Apache-2.0
"""The cluster as the benchmark uses it without any executor: pods that nobody runs, and the bare limit."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.config import new_client_from_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CONCURRENCY = 32
"""Calls in flight, for every way that has more than one."""

WARM_UP_PODS = 64
"""Created before the measurement begins, so that every connection is open."""


def connect() -> CoreV1Api:
    """Return a client of the cluster of ``KUBECONFIG`` with a connection for each call in flight."""
    configuration = new_client_from_config(os.environ["KUBECONFIG"]).configuration
    configuration.connection_pool_maxsize = CONCURRENCY
    return CoreV1Api(ApiClient(configuration=configuration))


def at_once(work: Iterable[Any], do: Callable[[Any], None]) -> float:
    """Do something with each piece of work, ``CONCURRENCY`` at once; return the seconds that all took."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    failures: list[BaseException] = []
    for piece in work:
        waiting.put(piece)

    def run() -> None:
        while not failures:
            try:
                do(waiting.get_nowait())
            except queue.Empty:
                return
            except BaseException as exc:  # noqa: BLE001  # told by the thread that waits
                failures.append(exc)

    threads = [threading.Thread(target=run) for _ in range(CONCURRENCY)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - started


def post_bare(api: CoreV1Api, namespace: str, pods: int) -> float:
    """Create ready-made pods by bare HTTP posts, and return the seconds that it took.

    The pod is as large as one of ours, and was written as JSON before.
    """
    bodies = [json.dumps(_ready_pod(number)).encode() for number in range(WARM_UP_PODS + pods)]
    headers = {"Content-Type": "application/json"}
    api.api_client.update_params_for_auth(headers, [], ["BearerToken"])
    url = f"{api.api_client.configuration.host}/api/v1/namespaces/{namespace}/pods"
    pool = api.api_client.rest_client.pool_manager

    def post(body: bytes) -> None:
        response = pool.request("POST", url, body=body, headers=headers)
        assert response.status == 201, response.data

    at_once(bodies[:WARM_UP_PODS], post)
    return at_once(bodies[WARM_UP_PODS:], post)


def _ready_pod(number: int) -> dict[str, Any]:
    notes = {f"note-{one}": "x" * 36 for one in range(8)}
    container = {
        "name": "base",
        "image": "none.invalid/none:none",
        "args": ["python", "-m", "workers.pod", "--json-string", "x" * 1500],
        "env": [{"name": "AIRFLOW_IS_K8S_EXECUTOR_POD", "value": "True"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"bare-{number}", "labels": notes, "annotations": notes},
        "spec": {"schedulerName": "nobody", "restartPolicy": "Never", "containers": [container]},
    }


def version_of(api: CoreV1Api, namespace: str) -> str:
    """Return the resource version of now."""
    return str(api.list_namespaced_pod(namespace, limit=1).metadata.resource_version)


@dataclass(frozen=True)
class Finished:
    """What the played kubelet did.

    :param version: resource version to watch from, to see all of it
    :param events: how many events that makes, without the creations
    """

    version: str
    events: int


def finish_pods(api: CoreV1Api, namespace: str) -> Finished:
    """Say of each pod that it runs, and then that it succeeded."""
    listed = api.list_namespaced_pod(namespace)
    names = [pod.metadata.name for pod in listed.items]

    def finish(name: str) -> None:
        for phase, state in (("Running", {"running": {}}), ("Succeeded", {"terminated": {"exitCode": 0}})):
            container = {
                "name": "base",
                "image": "none",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": state,
            }
            status = {"phase": phase, "containerStatuses": [container]}
            api.patch_namespaced_pod_status(name, namespace, {"status": status})

    at_once(names, finish)
    return Finished(str(listed.metadata.resource_version), 2 * len(names))


def read_watch_bare(api: CoreV1Api, namespace: str, finished: Finished) -> float:
    """Read a watch without looking at what it says; return events per second."""
    response = api.list_namespaced_pod(
        namespace, watch=True, resource_version=finished.version, timeout_seconds=60, _preload_content=False
    )
    times: list[float] = []
    for chunk in response.stream(64 * 1024):
        times += [time.monotonic()] * chunk.count(b"\n")
        if len(times) >= finished.events:
            break
    response.close()
    return rate(times)


def rate(times: list[float]) -> float:
    """Return how many per second there were between the first and the last."""
    return (len(times) - 1) / max(times[-1] - times[0], 1e-6)
