# SPDX-License-Identifier: Apache-2.0
"""What dead schedulers leave in the cluster, and how often those that live call for it."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.settings import WorkloadDelivery
from tests.support import dispatching as run
from tests.support import fault_proxy, rows
from tests.support import field_dispatching as on

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


def look(*executors) -> None:
    """Let each scheduler take a turn in which it looks around."""
    for executor in executors:
        executor.dispatcher.adopt_soon()
        executor.told += run.told(executor)


def leave(field, number: int, **backend) -> list[str]:
    """Let a scheduler die after it settled its launches and before it could remove their pods."""
    proxy = field.proxy()
    for method in ("DELETE", "PATCH"):
        proxy.on(method, "/pods/", fault_proxy.answer(500), times=None)
    dead = on.started_executor(field, through=proxy, **backend)
    tokens = [on.launch_pod(dead, map_index=index) for index in range(number)]
    for token in tokens:
        on.start_and_claim(field, token)
        run.set_task(token, state="success")
        field.kubelet.end(field.kubelet.name_of(token), 0)
    dead.drive(lambda: on.settled(*tokens), "all have settled")
    on.crash(dead)
    assert len(field.kubelet.pods()) == number
    return tokens


def stray_pod(field, name: str, annotations: dict[str, str], **labels: str) -> None:
    """Make a finished pod with the labels of this deployment."""
    identity = {"airflow-executor": "hybrid-dispatcher", "airflow-deployment": field.namespace, **labels}
    field.api.create_namespaced_pod(
        field.namespace,
        {
            "metadata": {"name": name, "labels": identity, "annotations": annotations},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "base", "image": "none"}]},
        },
    )
    field.kubelet.end(name, 0)


def test_fault_62_leftovers_go_although_there_is_nothing_to_adopt(field):
    (token,) = leave(field, 1, settings={"workload_delivery": WorkloadDelivery.SECRET})
    pruned, test = str(uuid.uuid4()), str(uuid.uuid4())
    of_task = {"airflow-workload-type": "task", "airflow-launch-token": pruned}
    of_test = {"airflow-workload-type": "test_connection", "airflow-connection-test": test}
    stray_pod(field, f"test-connection-{test}", of_test, **{"airflow-worker": "hybrid-4711"})
    stray_pod(field, "pruned", of_task, **{"airflow-worker": "hybrid-4711"})
    stray_pod(field, "copy", {**of_task, "airflow-launch-token": token})
    stray_pod(field, "of-a-team", of_task, **{"airflow-team": "blue"})
    stray_pod(field, "of-another-deployment", of_task, **{"airflow-deployment": "green"})
    stray_pod(field, "of-nobody", {"dag_id": "d"})
    proxy = field.proxy()
    live = on.started_executor(field, through=proxy)
    assert on.orphan_check(live) == 0
    left = {"of-a-team", "of-another-deployment", "of-nobody"}
    live.drive(
        lambda: (look(live), {pod.metadata.name for pod in field.kubelet.pods()})[1] == left,
        "what is of this deployment and team is gone, and nothing else",
    )
    assert run.launch_of(token).state is LaunchState.SUCCEEDED
    # One list, one watch, and one call for each pod: nothing is asked for pod by pod.
    look(live)
    # The first of the two lists is the start's own question whether the cluster answers.
    assert proxy.count("GET", "/pods?") - proxy.count("GET", "watch=True") == 2
    assert proxy.count("GET", "/pods/") == 0
    assert proxy.count("DELETE", "/pods/") == 4
    secrets = field.api.list_namespaced_secret(field.namespace).items
    assert [one.metadata.name for one in secrets if one.type == "Opaque"] == []
    assert live.told == []


@pytest.mark.parametrize("keep", [False, True])
def test_fault_63_each_pod_of_a_dead_scheduler_is_called_for_once(field, keep):
    conf = {"delete_worker_pods": str(not keep)}
    tokens = leave(field, 12, conf=conf)
    proxies = [field.proxy(), field.proxy()]
    live = [on.started_executor(field, through=proxy, conf=conf) for proxy in proxies]
    own = on.launch_pod(live[0], task_id="own")
    on.start_and_claim(field, own)

    def unmarked() -> set[str]:
        look(*live)
        pods = field.kubelet.pods()
        return {one.metadata.name[-36:] for one in pods if "airflow-launch-done" not in one.metadata.labels}

    live[0].drive(lambda: unmarked() == {own}, "all leftovers are dealt with, and nothing else")
    for _ in range(3):
        look(*live)

    def calls(method: str, token: str) -> int:
        return sum(proxy.count(method, token) for proxy in proxies)

    expected = (1, 0) if keep else (0, 1)
    assert {(calls("PATCH", token), calls("DELETE", token)) for token in tokens} == {expected}
    assert calls("DELETE", own) == calls("PATCH", own) == 0


def test_fault_63_live_schedulers_leave_each_others_finished_pods_alone(field):
    proxies = [field.proxy(), field.proxy()]
    busy, idle = (on.started_executor(field, through=proxy) for proxy in proxies)
    tokens = [on.launch_pod(busy, map_index=index) for index in range(8)]
    for token in tokens:
        on.start_and_claim(field, token)
        field.kubelet.end(field.kubelet.name_of(token), 0)
    idle.drive(
        lambda: (look(idle), [one.progress.value for one in idle.pods.strays()])[1] == ["ended"] * 8,
        "the idle one sees them",
    )
    for token in tokens:
        run.set_task(token, state="success")
    busy.drive(lambda: (look(idle), field.kubelet.pods())[1] == [], "their owner removes them")
    assert proxies[1].count("DELETE", "/pods/") == proxies[1].count("PATCH", "/pods/") == 0
    assert proxies[0].count("DELETE", "/pods/") == len(tokens)


def test_fault_1_pod_housekeeping_never_touches_what_celery_holds(field):
    executor = on.started_executor(field)
    # No queue of its own, no executor named: it waits in the broker for longer than any sweep takes.
    held = [run.queue_task(executor, task_id=f"held-{queue}", queue=queue) for queue in ("default", "other")]
    pod = on.launch_pod(executor, task_id="pod")
    for _ in range(5):
        look(executor)
    field.kubelet.delete(field.kubelet.name_of(pod))
    executor.drive(lambda: not run.launch_of(pod).open, "the pod's launch has ended")
    for _ in range(3):
        look(executor)
    assert sorted(executor.celery.sends) == sorted(held)
    assert executor.celery.revoked == set()
    assert executor.celery.removals == []
    assert {launch.state for launch in on.launches(*held)} == {LaunchState.SUBMITTED}
    assert {key.task_id for key, *_ in executor.told} <= {"pod"}


def test_fault_75_of_mapped_siblings_only_the_one_whose_pod_is_missing_ends(field):
    executor = on.started_executor(field)
    tokens = [on.launch_pod(executor, task_id="mapped", map_index=index) for index in range(5)]
    tokens.append(on.launch_pod(executor, task_id="plain"))
    for token in tokens:
        on.start_and_claim(field, token)
    missing = tokens[2]
    field.kubelet.delete(field.kubelet.name_of(missing))
    executor.drive(lambda: executor.told, "the missing one is told")
    for _ in range(3):
        look(executor)
    assert {(key.task_id, key.map_index) for key, *_ in executor.told} == {("mapped", 2)}
    states = {token: launch.state for token, launch in zip(tokens, on.launches(*tokens), strict=True)}
    assert states.pop(missing) is LaunchState.LOST
    assert set(states.values()) == {LaunchState.CLAIMED}

    # The same by adoption: another one is missing when the next scheduler comes.
    on.crash(executor)
    run.set_task(missing, state="failed")
    field.kubelet.delete(field.kubelet.name_of(tokens[0]))
    # That this was the claimant's pod is not proven any more: its task's heartbeat has to stand still, too.
    run.set_task(tokens[0], last_heartbeat_at=rows.utcnow() - timedelta(hours=1))
    heir = on.started_executor(field)
    assert on.orphan_check(heir) == 0
    heir.drive(lambda: heir.told, "the missing one is told")
    assert {(key.task_id, key.map_index) for key, *_ in heir.told} == {("mapped", 0)}
    alive = {(key.task_id, key.map_index) for key in run.named(heir.running).values()}
    assert alive == {("mapped", 1), ("mapped", 3), ("mapped", 4), ("plain", -1)}
