# SPDX-License-Identifier: Apache-2.0
"""One DAG over both backends: a task's queue decides where it runs.

Ordinary queues go to Celery, the queue ``kubernetes`` goes to pods. Nothing else in the DAG knows of
backends. Its deadlines are so short that every run misses them; a routing rule on the import path decides
on which backend each callback runs::

    AIRFLOW__DISPATCHER__ROUTES=
        [{"match": {"kind": "callback", "callback": "*_on_kubernetes"}, "backend": "kubernetes"}]

The sensor ``standby`` has the queue ``standby``: some worker has to consume that one, too.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import (  # type: ignore[attr-defined]  # Airflow's type stub does not name them all
    DAG,
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
    get_current_context,
    task,
)

from dispatcher.example_dags.callbacks import report_late_on_celery, report_late_on_kubernetes
from dispatcher.example_dags.journal import note
from dispatcher.example_dags.standby import StandbySensor

DEADLINE = timedelta(seconds=1)
WAIT = timedelta(seconds=5)


def _note_this_task() -> None:
    instance = get_current_context()["ti"]
    map_index = -1 if instance.map_index is None else instance.map_index
    note(instance.task_id, map_index, instance.try_number)


@task
def list_parts() -> list[int]:
    """Decide what there is to do."""
    _note_this_task()
    return [1, 2]


@task
def load_part(part: int) -> int:
    """Do one part; mapped over all of them, on Celery."""
    _note_this_task()
    return part * 10


@task(queue="kubernetes")
def fit_model(parts: list[int], degree: int) -> int:
    """Do something that deserves a machine of its own: in a pod."""
    _note_this_task()
    return len(parts) * degree


@task
def pick_best(loaded: list[int], scores: list[int]) -> int:
    """Bring the results of both backends together, on Celery."""
    _note_this_task()
    return sum(loaded) + max(scores)


with DAG(
    dag_id="hybrid_tour",
    schedule=None,
    catchup=False,
    tags=["example"],
    doc_md=__doc__,
    deadline=[
        DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, DEADLINE, SyncCallback(callback))
        for callback in (report_late_on_celery, report_late_on_kubernetes)
    ],
):
    parts: Any = list_parts()
    scores: list[Any] = [
        fit_model.override(task_id=f"fit_{name}")(parts, degree)
        for degree, name in enumerate(("constant", "line", "curve"))
    ]
    loaded: Any = load_part.expand(part=parts)
    pick_best(loaded, scores)
    StandbySensor(task_id="standby", queue="standby", wait=WAIT)
