# SPDX-License-Identifier: Apache-2.0
"""K6: a pod is evicted, its image cannot be pulled, or its node goes away before ``/run``.

Right: launched again a bounded number of times without using a retry of the task; the old pod can never
claim. Today the first of these burns a retry (known fault 83).
"""

from __future__ import annotations

from uuid import UUID

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.domain.wire import EXIT_EXPIRED
from dispatcher.settings import WorkloadDelivery
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support.kubernetes_field import container_status

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]

EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}


def base_state(**state):
    return {"containerStatuses": [container_status(**state)]}


def evict(kubelet, name):
    kubelet.set_status(name, **EVICTED)


def lose_the_node(kubelet, name):
    kubelet.set_status(name, phase="Running", **base_state(running={}))
    kubelet.delete(name)


def lose_the_container(kubelet, name):
    terminated = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "The container is lost."}
    kubelet.set_status(name, phase="Failed", **base_state(terminated=terminated))


def fail_to_pull(kubelet, name):
    waiting = {"reason": "ErrImagePull", "message": "the registry does not answer"}
    kubelet.set_status(name, phase="Pending", **base_state(waiting=waiting))


def fail_to_create(kubelet, name):
    waiting = {"reason": "CreateContainerError", "message": "context deadline exceeded"}
    kubelet.set_status(name, phase="Pending", **base_state(waiting=waiting))


def wait_for_too_long(kubelet, name):
    kubelet.end(name, EXIT_EXPIRED, reason="Error")


LOST = {
    "evicted": (evict, "Evicted: The node was low on resource: memory."),
    "node": (lose_the_node, "deleted while running"),
    "unknown": (lose_the_container, "container base: ContainerStatusUnknown: The container is lost., exit"),
    "image": (fail_to_pull, "container base: ErrImagePull: the registry does not answer"),
    "token": (wait_for_too_long, "exit code 75; it waited for longer than its workload token is valid"),
    "container": (fail_to_create, "container base: CreateContainerError: context deadline exceeded"),
}


def task_instance(subject_id):
    with create_session(scoped=False) as session:
        found = session.get(TaskInstance, UUID(subject_id))
        return found.state, found.external_executor_id, found.try_number


def queue(executor, task_id="task"):
    token = run.queue_task(executor, task_id=task_id, queue=on.KUBERNETES_QUEUE)
    return token, run.launch_of(token).subject_id


def test_it_is_launched_again_without_a_retry_and_the_old_pod_can_never_claim(field):
    executor = on.started_executor(field, settings={"workload_delivery": WorkloadDelivery.SECRET})
    tasks = {task_id: queue(executor, task_id) for task_id in LOST}
    old_pods = {task_id: executor.pod_of(token) for task_id, (token, _) in tasks.items()}
    for task_id, (lose, _) in LOST.items():
        lose(field.kubelet, old_pods[task_id])

    def all_have_new_pods():
        return all(
            (newest := on.launches_of(subject)[-1]).token != token and newest.external_id
            for token, subject in tasks.values()
        )

    executor.drive(all_have_new_pods, "all are launched again")
    gone = set(old_pods.values())
    executor.drive(lambda: not gone & {pod.metadata.name for pod in field.kubelet.pods()}, "old pods go")

    def secrets_of_pods():
        return {one.metadata.name for one in field.api.list_namespaced_secret(field.namespace).items}

    executor.drive(lambda: not gone & secrets_of_pods(), "the garbage collector takes their Secrets")
    secrets = secrets_of_pods()
    for task_id, (token, subject) in tasks.items():
        old, new = on.launches_of(subject)
        assert task_instance(subject) == ("queued", new.token, 1)
        assert old.state is LaunchState.SUPERSEDED
        assert old.settled_at is not None
        reason = LOST[task_id][1]
        assert reason in old.end_reason
        assert new.route_reason == f"relaunch 1: {old.route_reason}"
        assert not run.claim(token), "the old pod starts after all"
        assert run.claim(new.token)
        ((event, text),) = executor.log_of(task_id)
        assert event == "launched again"
        assert reason in text
        assert text.endswith("(1 of 3)")
        payload = field.kubelet.name_of(new.token)
        assert payload in secrets
    assert executor.told == []
    assert executor.slots_occupied == len(LOST)


def test_fault_83_after_the_bound_there_is_one_failure_with_its_reason(field, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__TASK_RELAUNCHES", "1")
    executor = on.started_executor(field)
    token, subject = queue(executor)
    evict(field.kubelet, executor.pod_of(token))
    executor.drive(lambda: len(on.launches_of(subject)) == 2, "it is launched again")
    second = on.current_token(subject)
    evict(field.kubelet, executor.pod_of(second))
    executor.drive(lambda: executor.told, "Airflow is told")

    reason = "Evicted: The node was low on resource: memory.; 2 launches in a row did not start"
    ((key, state, info),) = executor.told
    assert (key.task_id, key.try_number, state, info) == ("task", 1, "failed", reason)
    assert executor.log_of("task")[-1] == ("launch failed", reason)
    assert [one.state for one in on.launches_of(subject)] == [LaunchState.SUPERSEDED, LaunchState.FAILED]
    run.set_task(second, state="up_for_retry")
    executor.drive(lambda: run.launch_of(second).settled_at, "it is settled")
    assert len({(key, state) for key, state, _ in executor.told}) == 1
    assert executor.slots_occupied == 0


def test_fault_83_a_task_that_runs_takes_the_normal_path(field):
    executor = on.started_executor(field)
    token, subject = queue(executor)
    name = executor.pod_of(token)
    (pod,) = field.kubelet.pods(token)
    assert run.claim(token, f"nonce:{pod.metadata.uid}/start")
    evict(field.kubelet, name)
    executor.drive(lambda: executor.told, "Airflow is told")
    assert {(state, info) for _, state, info in executor.told} == {("failed", LOST["evicted"][1])}
    assert executor.log_of("task") == [("launch failed", LOST["evicted"][1])]
    assert [one.state for one in on.launches_of(subject)] == [LaunchState.FAILED]


def test_the_next_scheduler_goes_on_counting(field, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DISPATCHER__TASK_RELAUNCHES", "1")
    first = on.started_executor(field)
    token, subject = queue(first)
    evict(field.kubelet, first.pod_of(token))
    first.drive(lambda: len(on.launches_of(subject)) == 2, "it is launched again")
    # It dies before it has sent the new launch.
    second = on.started_executor(field)
    with create_session(scoped=False) as session:
        instance = session.get(TaskInstance, UUID(subject))
        assert second.try_adopt_task_instances([instance]) == []
    evict(field.kubelet, second.pod_of(on.current_token(subject)))
    second.drive(lambda: second.told, "Airflow is told")
    assert len(on.launches_of(subject)) == 2
    assert second.told[0][1] == "failed"


def test_a_worker_that_ends_by_itself_is_not_started_again(field):
    executor = on.started_executor(field)
    token, subject = queue(executor)
    field.kubelet.end(executor.pod_of(token), 1, reason="Error", message="ModuleNotFoundError: dags")
    executor.drive(lambda: executor.told, "Airflow is told")
    reason = "container base: Error: ModuleNotFoundError: dags, exit code 1"
    assert executor.told[0][1:] == ("failed", reason)
    assert executor.log_of("task") == [("launch failed", reason)]
    assert len(on.launches_of(subject)) == 1
