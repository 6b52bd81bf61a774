# SPDX-License-Identifier: Apache-2.0
"""The executors that are compared, and their watchers, each as it is shipped."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.executors.workloads import ExecuteTask
from airflow.utils.session import create_session

from tests.support import rows

if TYPE_CHECKING:
    from airflow.executors.base_executor import BaseExecutor

SLOTS = 10_000
STOCK = {
    "worker_pods_creation_batch_size": "100",
    "pod_creation_max_concurrency": "32",
}


def _make_ours() -> BaseExecutor:
    from dispatcher.executor import HybridExecutor

    return HybridExecutor(parallelism=SLOTS)


def _make_stock() -> BaseExecutor:
    from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor

    executor = KubernetesExecutor()
    executor.parallelism = SLOTS
    return executor


@dataclass(frozen=True)
class Way:
    """One executor.

    :param make: makes it
    :param settings: changes to ``[kubernetes_executor]``
    :param signs_itself: it signs workloads at the send; the others get them signed
    """

    make: Callable[[], BaseExecutor]
    settings: Mapping[str, str]
    signs_itself: bool = False

    def queue(self, executor: BaseExecutor, count: int, run: str) -> None:
        """Queue the mapped task instances of a run as the scheduler does, in one transaction."""
        with create_session(scoped=False) as session:
            generator = None if self.signs_itself else executor.jwt_generator
            for number in range(count):
                instance = rows.make_task_instance(
                    session,
                    map_index=number,
                    run_id=f"{run}__{executor.job_id}",
                    queue="kubernetes",
                    queued_by_job_id=executor.job_id,
                )
                executor.queue_workload(ExecuteTask.make(instance, generator=generator), session)


WAYS: Mapping[str, Way] = {
    "stock_sequential": Way(_make_stock, {**STOCK, "async_pod_creation": "False"}),
    "stock_async": Way(_make_stock, {**STOCK, "async_pod_creation": "True"}),
    "ours": Way(_make_ours, {}, signs_itself=True),
}


def watch_with_ours(namespace: str, version: str, events: int, _job_id: str) -> list[float]:
    """Replay a watch through our watcher, and return when each event had been taken in."""
    from dispatcher.backends.kubernetes.client import open_cluster
    from dispatcher.backends.kubernetes.options import WatchTimes, load_options
    from dispatcher.backends.kubernetes.table import PodTable
    from dispatcher.backends.kubernetes.watch import PodWatcher

    times: list[float] = []

    class NotingTable(PodTable):
        def seen(self, *args: Any, **kwargs: Any) -> Any:
            super().seen(*args, **kwargs)
            times.append(time.monotonic())

    class Replay:
        """The cluster, as if its pods had been listed when the replay begins."""

        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def pod_pages(self, *_: Any) -> Iterator[tuple[list[Any], str]]:
            yield [], version

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

    cluster: Any = Replay(open_cluster(conf, load_options(conf), connections=2, request_seconds=10))
    table = NotingTable(lambda name: name)
    watcher = PodWatcher(cluster, namespace, "airflow-executor=hybrid-dispatcher", table, WatchTimes())
    watcher.start()
    _wait(lambda: len(times) >= events)
    watcher.stop()
    watcher.join(5)
    return times


def watch_with_stock(namespace: str, version: str, events: int, job_id: str) -> list[float]:
    """Replay a watch through the stock watcher, and return when each ending came out of its queue.

    It tells endings only, one for every two events.
    """
    from airflow.providers.cncf.kubernetes.executors.kubernetes_executor_utils import KubernetesJobWatcher
    from airflow.providers.cncf.kubernetes.kube_config import KubeConfig

    with multiprocessing.Manager() as manager:
        queue = manager.Queue()
        watcher = KubernetesJobWatcher(
            namespace=namespace,
            watcher_queue=queue,
            resource_version=version,
            scheduler_job_id=job_id,
            kube_config=KubeConfig(),
        )
        watcher.daemon = True
        watcher.start()
        times: list[float] = []

        def drain() -> None:
            while len(times) < events // 2:
                try:
                    queue.get(timeout=60)
                except Empty:
                    return
                times.append(time.monotonic())

        drainer = threading.Thread(target=drain)
        drainer.start()
        drainer.join()
        watcher.terminate()
        watcher.join(5)
    return times


def _wait(until: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)
