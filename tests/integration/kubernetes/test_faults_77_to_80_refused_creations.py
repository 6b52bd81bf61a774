# SPDX-License-Identifier: Apache-2.0
"""Known faults 77, 79, 80 and 86: creations that are refused, from the scheduler's loop on.

Right: what may be tried again is tried again with pauses, never blocking the loop or what goes to Celery;
what may not fails soon, alone, and with the API server's words.
"""

from __future__ import annotations

import time

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy
from tests.support import field_dispatching as on
from tests.support.mutation_hook import mutation_hook

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]

QUOTA = fault_proxy.answer(403, "pods are forbidden: exceeded quota: small")


def queue(executor, task_id="task"):
    return run.queue_task(executor, task_id=task_id, queue=on.KUBERNETES_QUEUE)


def failure_of(executor, token):
    """Run the loop until Airflow is told of one failure, and return its reason."""
    executor.drive(lambda: executor.told, "Airflow is told")
    ((_, state, reason),) = set(executor.told)
    assert state == "failed"
    run.set_task(token, state="failed")
    executor.drive(lambda: on.settled(token), "it is settled")
    assert (len(executor.task_queue), len(executor.running)) == (0, 0)
    return reason


def test_fault_77_a_quota_is_waited_for_with_growing_pauses(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", QUOTA, times=2)
    executor = on.started_executor(field, through=proxy)
    started = time.monotonic()
    on.launch_pod(executor)
    # One second and two, each with a quarter of jitter.
    assert time.monotonic() - started > 2
    assert proxy.count("POST", "/pods") == 3
    assert executor.told == []


def test_fault_77_tries_are_bounded_by_the_stock_setting(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", QUOTA, times=None)
    executor = on.started_executor(field, through=proxy, conf={"task_publish_max_retries": "1"})
    token = queue(executor)
    reason = failure_of(executor, token)
    assert "exceeded quota: small; not tried again" in reason
    assert "task_publish_max_retries = 1" in reason
    assert proxy.count("POST", "/pods") == 2
    assert run.launch_of(token).state is LaunchState.DROPPED


@pytest.mark.parametrize(
    ("conf", "through", "words"),
    [
        ({}, "nobody", 'User "nobody" cannot create resource "pods"'),
        ({"namespace": "no-such-namespace-here"}, None, 'namespaces "no-such-namespace-here" not found'),
    ],
    ids=["no right", "no namespace"],
)
def test_fault_77_what_will_never_be_allowed_fails_soon(field, conf, through, words):
    proxy = field.proxy(as_user=through)
    executor = on.started_executor(field, through=proxy, conf=conf)
    token = queue(executor)
    assert words in failure_of(executor, token)
    assert proxy.count("POST", "/pods") == 1


@pytest.mark.parametrize("status", [429, 503])
def test_fault_79_a_pause_that_the_server_asks_for_holds_up_nothing_else(field, status):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.answer(status, **{"Retry-After": "2"}))
    executor = on.started_executor(field, through=proxy, settings={"pod_creation_concurrency": 1})
    first = queue(executor, "first")
    executor.drive(lambda: executor.task_queue, "it was refused")
    refused = time.monotonic()

    # Others wait too, although nobody has refused them.
    second = queue(executor, "second")
    on_celery = run.queue_task(executor, task_id="on_celery")
    run.loop(executor)
    assert executor.celery.sends == [on_celery]
    assert proxy.count("POST", "/pods") == 1
    executor.drive(lambda: proxy.count("POST", "/pods") > 1, "the pause is over")
    assert time.monotonic() - refused > 1.5
    executor.drive(lambda: all(one.external_id for one in on.launches(first, second)), "both are created")
    assert proxy.count("POST", "/pods") == 3
    assert executor.told == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault_proxy.reset, id="reset"),
        pytest.param(fault_proxy.swallow, id="answer lost"),
        pytest.param(fault_proxy.answer(500), id="500"),
        pytest.param(fault_proxy.garbage, id="no JSON"),
        pytest.param(fault_proxy.answer(429, **{"Retry-After": "soon"}), id="malformed pause"),
    ],
)
def test_fault_80_the_scheduler_goes_on_and_there_is_one_pod(field, fault):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault)
    executor = on.started_executor(field, through=proxy)
    token = queue(executor)
    executor.drive(lambda: proxy.count("POST", "/pods"), "it is tried")
    on_celery = run.queue_task(executor, task_id="on_celery")
    executor.pod_of(token)
    assert executor.celery.sends == [on_celery]
    assert len(field.kubelet.pods()) == 1
    assert executor.told == []
    assert len(executor.running) == 2


def test_fault_86_a_hook_that_raises_fails_its_task_alone_with_its_error(field):
    def hook(pod):
        if pod.metadata.annotations["task_id"] == "bad":
            raise LookupError("no such team")
        pod.metadata.name = "renamed"
        pod.metadata.labels = {"mine": "yes"}
        pod.metadata.annotations = {}

    executor = on.started_executor(field)
    with mutation_hook(hook):
        bad = queue(executor, "bad")
        good = queue(executor, "good")
        name = executor.pod_of(good)
        executor.drive(lambda: executor.told, "Airflow is told")
    # It is told until Airflow has taken it up.
    ((key, state, reason),) = set(executor.told)
    assert (key.task_id, state, reason) == (
        "bad",
        "failed",
        "pod_mutation_hook failed: LookupError: no such team",
    )
    run.set_task(bad, state="failed")
    (pod,) = field.kubelet.pods()
    assert pod.metadata.name == name == f"dag-good-{good}"
    assert pod.metadata.labels["mine"] == "yes"
    field.kubelet.end(name, 0)
    assert run.claim(good)
    run.set_task(good, state="success")
    executor.drive(lambda: on.settled(good, bad), "both are settled")
