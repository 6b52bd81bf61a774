# SPDX-License-Identifier: Apache-2.0
"""One pod as a process of this machine: started, logged, stopped, and its end written to the pod's status."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatcher.local.cluster import containers, guardian, pods, podstatus
from dispatcher.local.cluster.deletion import Deletions
from dispatcher.local.cluster.events import Recorder
from dispatcher.local.cluster.mounts import NotMountableError
from dispatcher.local.cluster.notify import Notifier
from dispatcher.local.cluster.podlogs import Pipe, PodLog
from dispatcher.local.cluster.resources import PODS, SECRETS
from dispatcher.local.cluster.store import Json, ObjectMissingError, Store

REST_OF_OUTPUT_SECONDS = 2.0
"""How long output is waited for after the process ended, in case somebody outside the pod holds the pipe."""

_RETRY_SECONDS = 30.0
_SIGNAL_BASE = 128


@dataclass(frozen=True)
class Node:
    """What all pods of the node share.

    :param store: the objects.
    :param notifier: notified after each of their changes.
    :param deletions: takes pods away.
    :param recorder: records events.
    :param mark: identifies this cluster in the environment of its processes.
    :param environment: what pods inherit.
    :param watch_group: told each process group that starts (true) or has ended (false).
    """

    store: Store
    notifier: Notifier
    deletions: Deletions
    recorder: Recorder
    mark: str
    environment: Mapping[str, str]
    watch_group: Callable[[int, bool], None]


class PodProcess:
    """Runs one pod from the day it has a node to its end.

    :param node: what all pods share.
    :param pod: the pod.
    :param directory: for its log and its volumes; made here.
    """

    def __init__(self, node: Node, pod: Json, directory: Path) -> None:
        metadata = pod["metadata"]
        self._node = node
        self._namespace: str = metadata["namespace"]
        self._name: str = metadata["name"]
        self._uid: str = metadata["uid"]
        self._spec: Json = pod["spec"]
        self._directory = directory
        directory.mkdir(mode=0o700)
        self.log = PodLog(directory / "output")
        container = containers.choose(pod)
        self._container = podstatus.Container(container["name"], container["image"], self._uid)
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False
        self._past_deadline = False
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def container_name(self) -> str:
        """Return the name of the container that runs."""
        return self._container.name

    async def run(self) -> None:
        """Start the container as soon as its secrets exist, wait for its end, and write its status."""
        self._set_status(podstatus.waiting, "ContainerCreating")
        try:
            command = await self._command()
        except OSError as error:
            self._refuse(f"cannot prepare the container: {error}")
        else:
            if command is not None:
                await self._execute(command)
            else:
                self._set_status(podstatus.never_started)
        self.log.end()
        pod = self._pod()
        if pod is not None and pods.is_terminating(pod):
            self._node.deletions.finish(PODS, pod)

    def stop(self, grace_seconds: float) -> None:
        """Ask the process to end, as a container runtime does: SIGTERM, and SIGKILL to all when time is up.

        May be called again with less time.
        """
        first, self._stopped = not self._stopped, True
        self._node.notifier.notify()
        if self._process is None:
            return
        if grace_seconds > 0 and first:
            guardian.signal_process(self._process.pid, signal.SIGTERM)
        self._later(grace_seconds, self._kill)

    async def _command(self) -> containers.Command | None:
        """Return what to run, once the secrets that it needs exist; nothing if the pod is to end before."""
        shown = None
        while not self._stopped and (pod := self._pod()) is not None and not pods.is_terminating(pod):
            try:
                return containers.command(pod, self._directory, self._secret, self._node.environment)
            except containers.NotRunnableError as error:
                refusal = ("CreateContainerConfigError", "Failed", str(error))
            except NotMountableError as error:
                refusal = ("ContainerCreating", "FailedMount", str(error))
            if refusal != shown:
                state, event, message = shown = refusal
                self._set_status(podstatus.waiting, state, "" if event == "FailedMount" else message)
                self._node.recorder.record(pod, event, message, warning=True)
            await self._node.notifier.wait(_RETRY_SECONDS)
        return None

    async def _execute(self, command: containers.Command) -> None:
        pipe = Pipe(self.log)
        try:
            process = await self._spawn(command, pipe.write_end)
        finally:
            pipe.close_write_end()
        code = None if process is None else await self._end_of(process)
        await pipe.drain(REST_OF_OUTPUT_SECONDS)
        if code is not None:
            exit_code = code if code >= 0 else _SIGNAL_BASE - code
            step = podstatus.past_deadline if self._past_deadline else podstatus.finished
            self._set_status(step, exit_code)

    async def _spawn(self, command: containers.Command, output: int) -> asyncio.subprocess.Process | None:
        """Start the process; where that is impossible, say so in the status."""
        mark = {guardian.MARKER_VARIABLE: f"{self._node.mark}/{self._uid}"}
        try:
            return await asyncio.create_subprocess_exec(
                *command.words,
                env={**command.environment, **mark},
                cwd=command.directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._refuse(f"cannot run {command.words[0]!r}: {error}")
            return None

    async def _end_of(self, process: asyncio.subprocess.Process) -> int:
        """Return the exit code; negative after a signal. Nothing of the pod runs any more then."""
        self._process = process
        self._node.watch_group(process.pid, True)
        try:
            self._began()
            return await process.wait()
        finally:
            self._process = None
            for timer in self._timers:
                timer.cancel()
            self._end_rest(process.pid)
            self._node.watch_group(process.pid, False)

    def _refuse(self, message: str) -> None:
        self._set_status(podstatus.cannot_run, message)
        self._record("Failed", f"Error: {message}", warning=True)

    def _began(self) -> None:
        self._set_status(podstatus.running)
        self._record("Started", f"Started container {self._container.name}")
        if (deadline := self._spec.get("activeDeadlineSeconds")) is not None:
            self._later(deadline, self._pass_deadline)
        if self._stopped:
            # The stop came while the process was being started.
            self._kill()

    def _pass_deadline(self) -> None:
        self._past_deadline = True
        self._record("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        self.stop(self._spec["terminationGracePeriodSeconds"])

    def _kill(self) -> None:
        if self._process is not None:
            guardian.signal_group(self._process.pid, signal.SIGKILL)

    def _end_rest(self, group: int) -> None:
        """End what the container's first process left behind, as the end of a container does."""
        guardian.signal_group(group, signal.SIGKILL)
        for process in guardian.marked(f"{self._node.mark}/{self._uid}"):
            guardian.signal_process(process, signal.SIGKILL)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))

    def _secret(self, name: str) -> Json | None:
        try:
            return self._node.store.get(SECRETS.plural, self._namespace, name)
        except ObjectMissingError:
            return None

    def _pod(self) -> Json | None:
        """Return the pod as it is now; nothing if it is gone, or another has taken its name."""
        try:
            pod = self._node.store.get(PODS.plural, self._namespace, self._name)
        except ObjectMissingError:
            return None
        return pod if pod["metadata"]["uid"] == self._uid else None

    def _set_status(self, step: Callable[..., Json], *details: Any) -> None:
        if (pod := self._pod()) is not None:
            pod["status"] = step(pod["status"], self._container, self._node.store.now(), *details)
            self._node.store.update(PODS.plural, pod)

    def _record(self, reason: str, message: str, *, warning: bool = False) -> None:
        if (pod := self._pod()) is not None:
            self._node.recorder.record(pod, reason, message, warning=warning)
