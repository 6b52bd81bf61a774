# SPDX-License-Identifier: Apache-2.0
"""The one node: gives pods their place, runs them, and ends them when they are deleted."""

from __future__ import annotations

import asyncio
import copy
import logging
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from dispatcher.local.cluster import guardian, pods, podstatus
from dispatcher.local.cluster.deletion import Deletions
from dispatcher.local.cluster.events import Recorder
from dispatcher.local.cluster.notify import Notifier
from dispatcher.local.cluster.processes import REST_OF_OUTPUT_SECONDS, Node, PodProcess
from dispatcher.local.cluster.resources import NODES, PODS
from dispatcher.local.cluster.store import Json, Store

log = logging.getLogger(__name__)

NODE_NAME = "embedded-node"
STOP_SECONDS = 3.0
"""How long pods may take to end when the cluster ends."""


class Kubelet:
    """Runs pods, at most ``max_running`` at the same time; the others wait in Pending for their turn.

    :param store: the objects.
    :param notifier: notified after each of their changes.
    :param deletions: takes objects away.
    :param max_running: pods that run at the same time.
    :param environment: what pods inherit.
    """

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        deletions: Deletions,
        *,
        max_running: int,
        environment: Mapping[str, str],
    ) -> None:
        self._store = store
        self._notifier = notifier
        self._deletions = deletions
        self._max_running = max_running
        self._environment = environment
        self._recorder = Recorder(store, "embedded-kubelet")
        self._processes: dict[str, PodProcess] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: dict[str, int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run pods while the context is open; at its end every process of a pod has ended."""
        mark = uuid.uuid4().hex
        directory = Path(tempfile.mkdtemp(prefix="embedded-cluster-"))
        async with _guardian(mark, directory) as watch_group:
            node = Node(
                self._store,
                self._notifier,
                self._deletions,
                self._recorder,
                mark,
                self._environment,
                watch_group,
            )
            self._register()
            reconciling = asyncio.create_task(self._reconcile(node, directory))
            try:
                yield
            finally:
                reconciling.cancel()
                await asyncio.wait((reconciling,))
                await self._stop_all()

    def process_of(self, pod: Json) -> PodProcess | None:
        """Return the process of a pod, running or ended; nothing if it was not started yet."""
        return self._processes.get(pod["metadata"]["uid"])

    def release_readers(self) -> None:
        """Let everybody who follows a log come to an end, because the cluster does."""
        for process in self._processes.values():
            process.log.release()

    async def _reconcile(self, node: Node, directory: Path) -> None:
        while True:
            present = {pod["metadata"]["uid"]: pod for pod in self._store.objects(PODS.plural)}
            self._end_deleted(present)
            self._forget(present, directory)
            self._start_waiting(present, node, directory)
            await self._notifier.wait()

    def _end_deleted(self, present: Mapping[str, Json]) -> None:
        """Stop what runs of pods that are gone or terminating, and take away those of which nothing runs."""
        for uid in self._tasks:
            pod = present.get(uid)
            if pod is not None and not pods.is_terminating(pod):
                continue
            grace = pod["metadata"]["deletionGracePeriodSeconds"] if pod else 0
            if self._stopping.get(uid) != grace:
                self._stopping[uid] = grace
                self._processes[uid].stop(grace)
        for uid, pod in present.items():
            if _is_here(pod) and pods.is_terminating(pod) and uid not in self._tasks:
                self._deletions.finish(PODS, copy.deepcopy(pod))

    def _start_waiting(self, present: Mapping[str, Json], node: Node, directory: Path) -> None:
        waiting = [pod for uid, pod in present.items() if uid not in self._processes and _wants_place(pod)]
        waiting.sort(key=lambda pod: int(pod["metadata"]["resourceVersion"]))
        for pod in waiting:
            if pod["spec"]["restartPolicy"] != "Never":
                self._refuse(pod)
            elif len(self._tasks) < self._max_running:
                self._start(pod, node, directory)

    def _start(self, pod: Json, node: Node, directory: Path) -> None:
        pod = copy.deepcopy(pod)
        uid = pod["metadata"]["uid"]
        pod["spec"]["nodeName"] = NODE_NAME
        pod["status"] = podstatus.scheduled(pod["status"], self._store.now())
        pod = self._store.update(PODS.plural, pod)
        place = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._recorder.record(pod, "Scheduled", f"Successfully assigned {place} to {NODE_NAME}")
        process = self._processes[uid] = PodProcess(node, pod, directory / uid)
        task = self._tasks[uid] = asyncio.create_task(process.run(), name=f"pod {place}")
        task.add_done_callback(lambda done: self._ended(uid, done))

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._tasks[uid]
        self._stopping.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended with an error of the cluster", task.get_name(), exc_info=error)
        self._notifier.notify()

    def _refuse(self, pod: Json) -> None:
        message = "the embedded cluster runs pods with restartPolicy Never only"
        status = podstatus.unschedulable(pod["status"], self._store.now(), message)
        if status != pod["status"]:
            pod = self._store.update(PODS.plural, {**pod, "status": status})
            self._recorder.record(pod, "FailedScheduling", message, warning=True)

    def _forget(self, present: Mapping[str, Json], directory: Path) -> None:
        for uid in self._processes.keys() - present.keys() - self._tasks.keys():
            del self._processes[uid]
            shutil.rmtree(directory / uid, ignore_errors=True)

    async def _stop_all(self) -> None:
        for uid in self._tasks:
            self._processes[uid].stop(STOP_SECONDS)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=STOP_SECONDS + REST_OF_OUTPUT_SECONDS)

    def _register(self) -> None:
        now = self._store.now()
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now}
        room = {"pods": str(self._max_running)}
        node = {
            "metadata": {"name": NODE_NAME, "labels": {"kubernetes.io/hostname": NODE_NAME}},
            "spec": {},
            "status": {
                "conditions": [ready],
                "capacity": room,
                "allocatable": room,
                "addresses": [{"type": "InternalIP", "address": podstatus.ADDRESS}],
            },
        }
        self._store.create(NODES.plural, node)


@asynccontextmanager
async def _guardian(mark: str, directory: Path) -> AsyncIterator[Callable[[int, bool], None]]:
    """Have the guardian watch over the pods; yields what tells it of a process group that starts or ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        guardian.__file__,
        mark,
        str(directory),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    pipe = process.stdin
    if pipe is None:
        raise RuntimeError("the guardian has no pipe")
    try:
        yield lambda group, starts: pipe.write(b"%b%d\n" % (b"+" if starts else b"-", group))
    finally:
        pipe.close()
        await process.wait()


def _is_here(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName") == NODE_NAME)


def _wants_place(pod: Json) -> bool:
    """Say whether the pod is for this node and has not begun to end."""
    unassigned = not pod["spec"].get("nodeName") and pod["spec"]["schedulerName"] == pods.DEFAULT_SCHEDULER
    return (unassigned or _is_here(pod)) and not pods.is_terminating(pod) and not pods.is_finished(pod)
