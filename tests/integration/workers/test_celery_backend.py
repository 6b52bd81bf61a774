# SPDX-License-Identifier: Apache-2.0
"""The Celery backend and real workers, with the guard and with a server that plays the fence."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Artefact, Observation, Sent
from dispatcher.domain.launch import claimant_from_nonce
from tests.support import guarded_callbacks, services
from tests.support.backend_harness import eventually, make_submission
from tests.support.celery_backend import make_backend, make_conf
from tests.support.celery_worker import PLAIN, CeleryWorker
from tests.support.fence_server import FenceServer, refusal
from tests.support.workloads import make_callback_workload, make_task_workload

pytestmark = pytest.mark.needs("redis")

SECONDS = 60


@pytest.fixture(scope="module")
def module_fence():
    with FenceServer() as server:
        yield server


@pytest.fixture(scope="module")
def services_of_module(module_fence, guarded_dag_file, tmp_path_factory):
    """Yield the configuration of the backend, and a worker."""
    with services.claimed_redis_database() as broker:
        command = [*PLAIN, "--skip-serve-logs"]
        folder = tmp_path_factory.mktemp("worker")
        with CeleryWorker(command, broker, module_fence.url, folder) as worker:
            yield make_conf(broker, broker), worker


@pytest.fixture
def worker(services_of_module):
    worker = services_of_module[1]
    worker.take_marks()
    return worker


@pytest.fixture
def backend(services_of_module):
    backend = make_backend(services_of_module[0])
    backend.start("1")
    yield backend
    backend.stop()


@pytest.fixture
def fence(module_fence):
    module_fence.requests.clear()
    return module_fence


def submit(backend, make, what, queue="default"):
    """Send a launch of the workload and return its artefact."""
    submission = make_submission(queue=queue)
    workload = make(what, submission.token)
    submission = make_submission(token=submission.token, queue=queue, payload=workload.model_dump_json())
    assert backend.submit([submission]) == {submission.token: Sent(submission.token)}
    return Artefact(submission.token, submission.kind, submission.token)


def ending(backend, artefact):
    """Wait until the ending of an artefact is told."""

    def told():
        return [one for one in backend.observe() if one.token == artefact.token]

    (observation,) = eventually(told, "the ending is told", SECONDS)
    return observation


def test_a_message_is_run_once_and_its_end_is_told_with_its_claimant(backend, worker, fence):
    artefact = submit(backend, make_task_workload, "succeed")

    observed = ending(backend, artefact)

    (run,) = fence.calls("run")
    claimant = claimant_from_nonce(run.headers["airflow-launch-claimant"])
    assert (observed.ok, observed.claimant, observed.gone) == (True, claimant, False)
    assert worker.take_marks() == ["succeed"]
    backend.remove([artefact])
    assert worker.state(artefact.token) == "PENDING"
    assert backend.observe() == []


def test_a_callback_is_run_from_its_queue(backend, worker, fence):
    path = f"{guarded_callbacks.__name__}.succeed"
    artefact = submit(backend, make_callback_workload, path, queue="callbacks")

    assert ending(backend, artefact).ok
    assert worker.take_marks() == ["callback"]


def test_an_error_of_the_worker_is_told_with_its_text(backend, worker, fence):
    fence.fix("run", refusal("launch_token_invalid", 400))
    artefact = submit(backend, make_task_workload, "succeed")

    reason = "ServerResponseError: Server returned error"
    told = ending(backend, artefact)
    claimant = "nonce:" + fence.calls("run")[0].headers["airflow-launch-claimant"]
    assert told == Observation(artefact.token, ok=False, reason=reason, claimant=claimant)
    assert worker.take_marks() == []


def test_of_a_refused_message_nothing_is_told(backend, worker, fence):
    """Known fault 14: a duplicate that is refused fails the task."""
    submission = make_submission()
    fence.supersede(submission.token)
    workload = make_task_workload("succeed", submission.token)
    backend.submit([make_submission(token=submission.token, payload=workload.model_dump_json())])
    worker.wait_for(lambda: len(fence.calls("run")) == 1)
    worker.wait_idle()

    assert backend.observe() == []


def test_a_message_that_waits_is_dropped_when_it_is_revoked(backend, worker, fence):
    running = submit(backend, make_task_workload, "sleep")
    worker.wait_for(lambda: len(fence.calls("run")) == 1)
    waiting = submit(backend, make_task_workload, "succeed")

    backend.revoke([waiting])
    assert ending(backend, waiting) == Observation(waiting.token, ok=False, reason="revoked", anonymous=True)
    fence.supersede(running.token)
    assert ending(backend, running).ok
    worker.wait_idle()

    assert len(fence.calls("run")) == 1
    assert "succeed" not in worker.take_marks()


def test_a_task_that_runs_is_left_to_the_fence_when_it_is_revoked(backend, worker, fence):
    artefact = submit(backend, make_task_workload, "sleep")
    worker.wait_for(lambda: len(fence.calls("heartbeat")) == 1)

    backend.revoke([artefact])
    eventually(lambda: f"Tasks flagged as revoked: {artefact.token}" in worker.log(), "the worker is told")
    heartbeats = len(fence.calls("heartbeat"))
    worker.wait_for(lambda: len(fence.calls("heartbeat")) > heartbeats)

    fence.supersede(artefact.token)
    worker.wait_idle()
    next_one = submit(backend, make_task_workload, "succeed")
    assert ending(backend, next_one).ok
    assert worker.take_marks() == ["sleep", "succeed"]
