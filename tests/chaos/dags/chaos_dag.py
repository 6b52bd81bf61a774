# SPDX-License-Identifier: Apache-2.0
"""Short tasks on both backends, and a callback on each: the deadline is so short that every run misses it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback, get_current_context, task

from tests.chaos.bodies import run_on_celery, run_on_kubernetes, run_task

RETRIES = 20
"""A try ends with each worker that dies in it; that must not make a task fail."""

PODS_AT_ONCE = 3
"""The start of a pod takes some seconds of a core; more of them at once would only wait for each other."""

with DAG(
    dag_id="chaos",
    schedule=None,
    catchup=False,
    max_active_runs=1000,
    max_active_tasks=1000,
    default_args={"retries": RETRIES, "retry_delay": timedelta(seconds=1)},
    deadline=[
        DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=1), SyncCallback(callback))
        for callback in (run_on_celery, run_on_kubernetes)
    ],
):

    @task
    def work(number):
        """Run on Celery."""
        run_task(get_current_context()["ti"])

    @task(queue="kubernetes", max_active_tis_per_dag=PODS_AT_ONCE)
    def work_in_pod(number):
        """Run in a pod."""
        run_task(get_current_context()["ti"])

    @task
    def finish():
        """Run on Celery, after all others."""
        run_task(get_current_context()["ti"])

    [work.expand(number=[*range(7)]), work_in_pod.expand(number=[*range(2)])] >> finish()
