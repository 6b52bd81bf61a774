# SPDX-License-Identifier: Apache-2.0
"""K8, the pods' side: A stalls, is declared dead, and B adopts its tasks; A wakes up with launches in hand.

Right: A makes no pod of what B owns, takes none of B's away, and reports nothing about them.
"""

from __future__ import annotations

import pytest
from airflow.utils.state import TaskInstanceState

from tests.support import dispatching as run
from tests.support import field_dispatching as on

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


def test_k8_a_deposed_scheduler_touches_no_pod(field):
    to_a, to_b = field.proxy(), field.proxy()
    a = on.started_executor(field, through=to_a)
    sent = {name: on.launch_pod(a, task_id=name) for name in ("runs", "fails")}
    for token in sent.values():
        on.start_and_claim(field, token)
    # Issued and committed; A stalls before it can make the pod.
    in_hand = run.queue_task(a, task_id="in_hand", queue=on.KUBERNETES_QUEUE)
    on.declare_dead(a)
    b = on.started_executor(field, through=to_b)
    assert on.orphan_check(b) == 0
    # By its next look at least, A has work in hand that is B's.
    b.drive(
        lambda: {one.scheduler_job_id for one in on.launches(*sent.values(), in_hand)} == {str(b.job_id)},
        "B owns all",
    )

    made = to_a.count("POST", "/pods")
    field.kubelet.end(field.kubelet.name_of(sent["fails"]), 137, reason="OOMKilled")
    a.drive(a.pods.observe, "A sees the end")
    a.dispatcher.adopt_soon()
    for _ in range(3):
        a.told += run.told(a)
    assert a.told == []
    assert to_a.count("POST", "/pods") == made
    assert a.slots_occupied == 0

    name = b.pod_of(in_hand)
    b.drive(lambda: b.told, "B reports the failure")
    assert {(key.task_id, state) for key, state, _ in b.told} == {("fails", TaskInstanceState.FAILED)}
    run.set_task(sent["fails"], state="up_for_retry")
    b.drive(lambda: on.settled(sent["fails"]), "it has settled")
    a.dispatcher.adopt_soon()
    for _ in range(3):
        a.told += run.told(a)
    assert a.told == []
    assert to_a.count("DELETE", "/pods/") == to_a.count("PATCH", "/pods/") == 0
    assert {pod.metadata.name for pod in field.kubelet.pods()} >= {name}
    # Fault 68: what B has in hand is what exists and has not ended.
    assert {key.task_id for key in run.named(b.running).values()} == {"runs", "in_hand"}
