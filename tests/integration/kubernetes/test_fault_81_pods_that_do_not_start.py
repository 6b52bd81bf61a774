# SPDX-License-Identifier: Apache-2.0
"""Known faults 81 and 101: a pod that is pending for ever, and a failure whose reason is shown as None."""

from __future__ import annotations

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support.kubernetes_field import container_status

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]

UNSCHEDULABLE = "0/3 nodes are available: 3 Insufficient memory."
KILLED = "container base: OOMKilled, exit code 137"


def queue(executor, task_id="task"):
    token = run.queue_task(executor, task_id=task_id, queue=on.KUBERNETES_QUEUE)
    return token, run.launch_of(token).subject_id, executor.pod_of(token)


def test_fault_81_a_reason_that_nothing_can_mend_fails_the_task_at_once(field):
    executor = on.started_executor(field)
    token, subject, name = queue(executor)
    status = container_status(waiting={"reason": "InvalidImageName", "message": "couldn't parse image"})
    field.kubelet.set_status(name, phase="Pending", containerStatuses=[status])
    executor.drive(lambda: executor.told, "Airflow is told")
    reason = "container base: InvalidImageName: couldn't parse image"
    assert executor.told[0][1:] == ("failed", reason)
    assert executor.log_of("task") == [("launch failed", reason)]
    assert [one.state for one in on.launches_of(subject)] == [LaunchState.FAILED]
    run.set_task(token, state="failed")
    # Failed pods are kept by default, but not one that may still start.
    executor.drive(lambda: field.kubelet.pods() == [], "the pod is removed")


def test_fault_81_airflow_gives_up_what_cannot_be_scheduled_and_the_reason_is_told(field):
    executor = on.started_executor(field)
    token, _, name = queue(executor)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": UNSCHEDULABLE,
    }
    field.kubelet.set_status(name, phase="Pending", conditions=[condition])
    executor.drive(lambda: executor.dispatcher.why_waiting(token), "the reason is known")
    assert run.launch_of(token).state is LaunchState.SUBMITTED
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.external_executor_id == token))
        executor.revoke_task(ti=ti)
        ti.state = "scheduled"
    assert executor.log_of("task") == [("launch stuck", f"Unschedulable: {UNSCHEDULABLE}")]
    executor.drive(lambda: field.kubelet.pods() == [], "the pod is removed")
    assert run.launch_of(token).end_reason.endswith(f"stuck in queued; Unschedulable: {UNSCHEDULABLE}")
    assert executor.told == []


def end_in_the_init_container(kubelet, name):
    git = container_status("git-sync", terminated={"exitCode": 137, "reason": "OOMKilled"})
    base = container_status(waiting={"reason": "PodInitializing"})
    kubelet.set_status(name, phase="Failed", initContainerStatuses=[git], containerStatuses=[base])


ENDINGS = {
    "killed": (lambda kubelet, name: kubelet.end(name, 137, reason="OOMKilled"), KILLED),
    "silent": (lambda kubelet, name: kubelet.end(name, 1), "container base: exit code 1"),
    "evicted": (
        lambda kubelet, name: kubelet.set_status(
            name, phase="Failed", reason="Evicted", message="low on disk"
        ),
        "Evicted: low on disk",
    ),
    "init": (end_in_the_init_container, "init container git-sync: OOMKilled, exit code 137"),
    "nothing": (
        lambda kubelet, name: kubelet.set_status(name, phase="Failed"),
        "the pod failed; the cluster gives no reason",
    ),
}


def test_fault_101_container_reason_and_code_are_in_the_event_log_and_in_the_failure(field):
    executor = on.started_executor(field)
    for task_id, (end, _) in ENDINGS.items():
        token, _, name = queue(executor, task_id)
        (pod,) = field.kubelet.pods(token)
        assert run.claim(token, f"nonce:{pod.metadata.uid}/start")
        end(field.kubelet, name)

    def told() -> dict[str, str]:
        return {key.task_id: info for key, _, info in executor.told}

    executor.drive(lambda: len(told()) == len(ENDINGS), "Airflow is told of all")
    assert told() == {task_id: reason for task_id, (_, reason) in ENDINGS.items()}
    for task_id, (_, reason) in ENDINGS.items():
        assert executor.log_of(task_id) == [("launch failed", reason)]
    assert {state for _, state, _ in executor.told} == {"failed"}
