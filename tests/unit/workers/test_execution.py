# SPDX-License-Identifier: Apache-2.0
"""Which workloads are launches of ours, and what an execution presents."""

from __future__ import annotations

import os
import time

import jwt
import pytest

from dispatcher.domain.worker_claimant import WORKER_VARIABLE, process_of_worker
from tests.support.workloads import make_callback_workload, make_task_workload, unsigned_token
from workers.execution import execution_of_callback, execution_of_task, is_expired, read_launch_token

TOKEN = "7d0f6b0e-5d3c-4c8a-9d5e-0a4b7d0c1f2e"


def test_the_claim_is_read_without_the_key():
    assert read_launch_token(unsigned_token("subject", TOKEN)) == TOKEN


def test_an_expired_token_is_read_too():
    """The server judges it; the worker must present it to be told."""
    expired = jwt.encode({"launch_token": TOKEN, "exp": 1, "aud": "elsewhere"}, "k" * 64, algorithm="HS512")

    assert read_launch_token(expired) == TOKEN


@pytest.mark.parametrize(
    ("claims", "expired"),
    [
        pytest.param({"exp": 1}, True, id="long ago"),
        pytest.param({"exp": time.time() + 3600}, False, id="in an hour"),
        pytest.param({}, False, id="never"),
    ],
)
def test_fault_108_whether_a_token_is_expired_is_read_without_the_key(claims, expired):
    assert is_expired(jwt.encode(claims, "k" * 64, algorithm="HS512")) is expired


def test_what_is_no_token_is_not_expired():
    assert not is_expired("a.b.c")


@pytest.mark.parametrize(
    "token",
    [
        "",
        "no jwt",
        "a.b.c",
        "a.e30.c",
        "a.WzFd.c",
        "a.\xfc.c",
        unsigned_token("subject", None),
        jwt.encode({"launch_token": 5}, "k" * 64, algorithm="HS512"),
    ],
)
def test_anything_else_is_no_launch_of_ours(token):
    assert read_launch_token(token) is None


def test_a_workload_of_a_stock_executor_has_no_execution():
    assert execution_of_task(make_task_workload()) is None
    assert execution_of_callback(make_callback_workload("os.getpid")) is None


def test_an_execution_presents_the_token_and_a_nonce_of_its_own():
    workload = make_task_workload(launch_token=TOKEN)

    first, second = execution_of_task(workload), execution_of_task(workload)

    assert set(first.headers) == {"Airflow-Launch-Token", "Airflow-Launch-Claimant"}
    assert first.headers["Airflow-Launch-Token"] == TOKEN
    assert first.headers["Airflow-Launch-Claimant"] != second.headers["Airflow-Launch-Claimant"]


def test_an_execution_names_its_subject():
    task = make_task_workload(launch_token=TOKEN)
    callback = make_callback_workload("os.getpid", TOKEN)

    assert str(execution_of_task(task)) == f"launch {TOKEN} of task {task.ti.id}"
    assert str(execution_of_callback(callback)) == f"launch {TOKEN} of callback {callback.callback.id}"


def test_the_nonce_of_a_pod_begins_with_its_uid_and_differs_in_each_start(monkeypatch):
    monkeypatch.setenv("AIRFLOW_LAUNCH_POD_UID", "the-uid")
    workload = make_task_workload(launch_token=TOKEN)

    first, second = execution_of_task(workload), execution_of_task(workload)

    assert first.claimant.startswith("the-uid/")
    assert second.claimant.startswith("the-uid/")
    assert first.claimant != second.claimant


def test_in_a_celery_worker_the_nonce_begins_with_the_process(monkeypatch):
    monkeypatch.setenv(WORKER_VARIABLE, "name-of-the-worker")
    workload = make_task_workload(launch_token=TOKEN)

    first, second = execution_of_task(workload), execution_of_task(workload)

    for execution in (first, second):
        assert execution.claimant.startswith(process_of_worker("name-of-the-worker", os.getpid()))
    assert first.claimant != second.claimant
