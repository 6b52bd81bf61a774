# SPDX-License-Identifier: Apache-2.0
"""What must be refused: what a stalled scheduler sends when it wakes up, and a second claimant.

Messages and pods are made by the executor's own parts, and every JWT is signed with the right key. Only the
launch is not the current one, or has its claimant already.
"""

from __future__ import annotations

import os
import socket
import uuid
from datetime import UTC, datetime
from getpass import getuser
from typing import TYPE_CHECKING

import httpx
from airflow.configuration import conf
from airflow.executors.base_executor import get_execution_api_server_url

from dispatcher import settings
from dispatcher.backends.base import Artefact, Sent, Submission, SubmitResult, Underway
from dispatcher.backends.celery.backend import CeleryBackend
from dispatcher.backends.kubernetes.backend import KubernetesBackend
from dispatcher.dispatch.signing import Signer
from dispatcher.domain.wire import LAUNCH_CLAIMANT_HEADER, LAUNCH_TOKEN_HEADER
from dispatcher.domain.workload import WorkloadKind
from dispatcher.executor import HybridExecutor
from dispatcher.local.errors import LocalModeError
from dispatcher.local.tour.records import workload_of
from dispatcher.local.tour.waiting import happened

if TYPE_CHECKING:
    from dispatcher.backends.base import Backend
    from dispatcher.domain.launch import Launch

ANSWER_SECONDS = 30.0


class StalledScheduler:
    """Sends launches of tasks, whatever became of them meanwhile."""

    def __init__(self) -> None:
        self._settings = settings.load(conf)
        self._signer = Signer(lambda: HybridExecutor().jwt_generator, self._settings.workload_token_ttl)

    def send_message(self, launch: Launch, queue: str) -> None:
        """Send the Celery message of a launch.

        :param queue: where to; the launch's own may not be consumed
        :raises LocalModeError: the broker did not take it
        """
        self._send(CeleryBackend(conf, self._settings), launch, queue)

    def create_pod(self, launch: Launch) -> Artefact:
        """Create the pod of a launch and return what ``remove_pod`` needs.

        :raises LocalModeError: the cluster did not take it
        """
        sent = self._send(KubernetesBackend(conf, self._settings), launch, launch.queue)
        return Artefact(launch.token, WorkloadKind.TASK, sent.external_id)

    def remove_pod(self, pod: Artefact) -> None:
        """Remove a pod that ended: nobody but the scheduler that created it waits for it."""
        backend = KubernetesBackend(conf, self._settings)
        try:
            backend.remove([pod])
        finally:
            backend.stop()

    def claim(self, launch: Launch) -> httpx.Response:
        """Claim a launch over HTTP, as one more worker that got it, and return the answer.

        :raises LocalModeError: there was no answer
        """
        workload = self._signer.sign(workload_of(launch), launch.token)
        headers = {
            "Authorization": f"Bearer {workload.token}",
            LAUNCH_TOKEN_HEADER: launch.token,
            LAUNCH_CLAIMANT_HEADER: str(uuid.uuid4()),
        }
        body = {
            "state": "running",
            "hostname": socket.gethostname(),
            "unixname": getuser(),
            "pid": os.getpid(),
            "start_date": datetime.now(tz=UTC).isoformat(),
        }
        url = f"{get_execution_api_server_url(conf).rstrip('/')}/task-instances/{launch.subject_id}/run"
        try:
            return httpx.patch(url, headers=headers, json=body, timeout=ANSWER_SECONDS)
        except httpx.HTTPError as exc:
            raise LocalModeError(f"the claim got no answer: {exc}") from exc

    def _send(self, backend: Backend, launch: Launch, queue: str) -> Sent:
        results: dict[str, SubmitResult] = {}

        def answered() -> bool:
            results.update(backend.results())
            return not isinstance(results[launch.token], Underway)

        backend.start(launch.scheduler_job_id or "0")
        try:
            results.update(backend.submit([self._submission(launch, queue)]))
            happened(answered, ANSWER_SECONDS)
        finally:
            backend.stop()
        result = results[launch.token]
        if not isinstance(result, Sent):
            raise LocalModeError(f"{backend.name.value} did not take launch {launch.token}: {result}")
        return result

    def _submission(self, launch: Launch, queue: str) -> Submission:
        workload = self._signer.sign(workload_of(launch), launch.token)
        return Submission(
            token=launch.token,
            kind=WorkloadKind.TASK,
            queue=queue,
            payload=workload.model_dump_json(),
            workload=workload,
            dag_id=launch.dag_id,
            run_id=launch.run_id,
            task_id=launch.task_id,
            map_index=launch.map_index,
            try_number=launch.try_number,
        )
