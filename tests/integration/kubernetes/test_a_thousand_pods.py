# SPDX-License-Identifier: Apache-2.0
"""Many pods created, run, finished and removed in one go: no event lost, and nothing left behind.

``DISPATCHER_TESTS_PODS`` says how many: 200 by default, to save time.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import update

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.ledger import claims
from dispatcher.settings import WorkloadDelivery
from tests.support import dispatching as run
from tests.support import field_dispatching as on
from tests.support import rows

pytestmark = [
    pytest.mark.needs("kubernetes"),
    pytest.mark.usefixtures("airflow_db"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

PODS = int(os.environ.get("DISPATCHER_TESTS_PODS", "200"))
SECONDS = 300
BY_HAND = "deleted by hand"
ENDS = (0, 0, 0, 1, BY_HAND)
"""How the pods end, in turn: most well, some by an exit code that no worker reported."""


@pytest.fixture
def kubelets():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def queue_many(executor, number: int) -> list[str]:
    """Queue one mapped task as the scheduler does, and return the tokens in the order of the indices."""
    with create_session(scoped=False) as session:
        return [
            run.enqueue(
                executor,
                session,
                rows.make_task_instance(
                    session, map_index=index, queue=on.KUBERNETES_QUEUE, queued_by_job_id=executor.job_id
                ),
            )
            for index in range(number)
        ]


def claim_all(uids: dict[str, str]) -> None:
    """Claim as ``/run`` does, for pods by token."""
    with create_session(scoped=False) as session:
        for token, launch in zip(uids, on.launches(*uids), strict=True):
            assert claims.claim_task(
                session.connection(),
                token,
                launch.subject_id,
                f"nonce:{uids[token]}/1",
                hostname="pod",
                now=rows.utcnow(),
            )
    set_tasks(list(uids), state="running", last_heartbeat_at=rows.utcnow())


def set_tasks(tokens, **columns) -> None:
    with create_session(scoped=False) as session:
        for start in range(0, len(tokens), 500):
            chosen = TaskInstance.external_executor_id.in_(tokens[start : start + 500])
            session.execute(update(TaskInstance).where(chosen).values(**columns))


def take_in(executor, events) -> None:
    """Do as the scheduler does with the events it is told."""
    failed = {key.map_index for key, state, _info in events if state is TaskInstanceState.FAILED}
    with create_session(scoped=False) as session:
        session.execute(
            update(TaskInstance).where(TaskInstance.map_index.in_(failed)).values(state="up_for_retry")
        )


def test_no_event_is_lost_and_nothing_is_left(field, kubelets):
    executor = on.started_executor(
        field,
        parallelism=PODS,
        conf={"delete_worker_pods_on_failure": "True"},
        settings={"workload_delivery": WorkloadDelivery.SECRET},
    )
    tokens = queue_many(executor, PODS)
    executor.drive(lambda: all(one.external_id for one in on.launches(*tokens)), "every pod is made", SECONDS)
    pods = {token: pod for pod in field.kubelet.pods() for token in [pod.metadata.name[-36:]]}
    assert sorted(pods) == sorted(tokens)
    assert executor.slots_occupied == PODS

    names = [pods[token].metadata.name for token in tokens]
    list(kubelets.map(lambda name: field.kubelet.set_status(name, phase="Running"), names))
    claim_all({token: pods[token].metadata.uid for token in tokens})

    wanted = {token: ENDS[index % len(ENDS)] for index, token in enumerate(tokens)}
    good = [token for token, end in wanted.items() if end == 0]
    set_tasks(good, state="success")
    ending = [
        kubelets.submit(field.kubelet.delete, pods[token].metadata.name)
        if end == BY_HAND
        else kubelets.submit(field.kubelet.end, pods[token].metadata.name, end)
        for token, end in wanted.items()
    ]
    bad = {index for index, token in enumerate(tokens) if wanted[token] != 0}
    executor.drive(lambda: {key.map_index for key, *_ in executor.told} == bad, "every failure", SECONDS)
    assert all(state is TaskInstanceState.FAILED for _key, state, _info in executor.told)
    for end in ending:
        end.result()
    take_in(executor, executor.told)
    executor.drive(lambda: on.settled(*tokens), "every launch has settled", SECONDS)

    expected = {0: LaunchState.SUCCEEDED, 1: LaunchState.FAILED, BY_HAND: LaunchState.LOST}
    assert [one.state for one in on.launches(*tokens)] == [expected[wanted[token]] for token in tokens]
    executor.drive(lambda: field.kubelet.pods() == [], "no pod is left", SECONDS)
    assert executor.slots_occupied == 0
    assert executor.pods.observe() == []
    executor.drive(lambda: secrets(field) == [], "no Secret is left", SECONDS)


def secrets(field) -> list[str]:
    return [
        one.metadata.name
        for one in field.api.list_namespaced_secret(field.namespace).items
        if one.type == "Opaque"
    ]
