# SPDX-License-Identifier: Apache-2.0
"""A DAG for tests of workers, with a task that goes on when the test lets it."""

from __future__ import annotations

from airflow.sdk import DAG, task

from tests.support import gate

with DAG("gated", schedule=None):

    @task
    def wait():
        gate.pass_through()

    wait()
