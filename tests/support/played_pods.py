# SPDX-License-Identifier: Apache-2.0
"""A kubelet of threads: it starts the pods of a namespace, plays what they run, and says how they ended."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from kubernetes.client.exceptions import ApiException

from dispatcher.backends.kubernetes.identity import LAUNCH_TOKEN
from dispatcher.domain.pod_claimant import nonce_in_pod
from tests.support.players import KilledError, Player

if TYPE_CHECKING:
    from tests.support.kubernetes_field import Kubelet

LOOK_SECONDS = 0.1
KILLED = 137
"""Exit code of a process that was killed."""


def place_of(pod: Any) -> str:
    """Return what the notes call a pod."""
    return f"pod {pod.metadata.name}"


class PlayedPods:
    """Runs the pods of a namespace; use it as a context manager.

    :param kubelet: writes their status
    :param player: plays their workloads
    :param threads: how many run at once
    :param may_start: asked before a pod is started
    """

    def __init__(
        self,
        kubelet: Kubelet,
        player: Player,
        threads: int = 6,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self._kubelet = kubelet
        self._player = player
        self._may_start = may_start
        self._pool = ThreadPoolExecutor(threads)
        self._ended = threading.Event()
        self._taken: set[str] = set()
        self._running: dict[str, Any] = {}
        self._dying: set[str] = set()
        self._watcher = threading.Thread(target=self._look, name="played-pods")
        self.errors: list[BaseException] = []

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._watcher.join()
        self._pool.shutdown(cancel_futures=True)

    def kill_one(self, chance: random.Random) -> str | None:
        """Kill the process of a pod that runs; return the place, or None where none runs."""
        running = sorted(self._running.items())
        if not running:
            return None
        uid, pod = chance.choice(running)
        self._dying.add(uid)
        return place_of(pod)

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                pods = self._kubelet.pods()
            except ApiException as exc:
                self.errors.append(exc)
                continue
            for pod in pods:
                uid = pod.metadata.uid
                if uid not in self._taken and pod.status.phase == "Pending":
                    self._taken.add(uid)
                    self._pool.submit(self._guard, pod)

    def _guard(self, pod: Any) -> None:
        try:
            self._run(pod)
        except BaseException as exc:  # noqa: BLE001  # the test looks at it
            self.errors.append(exc)

    def _run(self, pod: Any) -> None:
        while not self._may_start():
            if self._ended.is_set():
                return
            time.sleep(LOOK_SECONDS)
        name, uid = pod.metadata.name, pod.metadata.uid
        try:
            self._kubelet.set_status(name, phase="Running")
        except ApiException:
            return  # it was taken away before it could start
        arguments = pod.spec.containers[0].args
        payload = arguments[arguments.index("--json-string") + 1].replace("$$", "$")
        nonce = nonce_in_pod(uid, str(uuid.uuid4()))
        self._running[uid] = pod
        # A stock pod knows no launch: one that is refused its start has failed.
        guarded = LAUNCH_TOKEN in (pod.metadata.annotations or {})
        try:
            played = self._player.play(payload, nonce, place_of(pod), lambda: uid in self._dying)
            exit_code = 0 if played or guarded else 1
        except KilledError:
            exit_code = KILLED
        finally:
            del self._running[uid]
        with suppress(ApiException):
            self._kubelet.end(name, exit_code)
