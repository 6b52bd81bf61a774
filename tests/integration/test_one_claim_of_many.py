# SPDX-License-Identifier: Apache-2.0
"""Two hundred claimants of one token, from eight threads, against a real API server with two workers."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support.fence_calls import Worker, launch_row, queued_launch, reason, task_instance

CLAIMANTS = 200
THREADS = 8


@pytest.fixture
def server_url(api_server):
    return api_server(workers=2).url


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_exactly_one_wins(db_session, server_url):
    launch = queued_launch(db_session)

    def claim(number):
        worker = Worker(
            client=client,
            subject_id=launch.subject_id,
            header=launch.token,
            claim=launch.token,
            claimant=f"claimant-{number}",
            pid=number,
        )
        return number, worker.run()

    with httpx.Client(base_url=server_url, timeout=60) as client, ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(claim, range(CLAIMANTS)))

    outcomes = Counter((answer.status_code, reason(answer)) for _, answer in answers)
    assert outcomes == {(200, None): 1, (409, "launch_consumed"): CLAIMANTS - 1}
    winner = next(number for number, answer in answers if answer.status_code == 200)
    row = launch_row(db_session, launch.token)
    assert (row.state, row.claimant) == (LaunchState.CLAIMED, f"nonce:claimant-{winner}")
    assert task_instance(db_session, launch.subject_id).pid == winner


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stock_claimants_are_processes(db_session, server_url):
    """Without headers the claimant is host, user and process; Airflow's own answer tells the others."""
    launch = queued_launch(db_session)

    def claim(number):
        worker = Worker(client=client, subject_id=launch.subject_id, claim=launch.token, pid=number % 10)
        return number % 10, worker.run()

    with httpx.Client(base_url=server_url, timeout=60) as client, ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(claim, range(40)))

    winners = {pid for pid, answer in answers if answer.status_code == 200}
    assert len(winners) == 1
    refused = Counter((answer.status_code, reason(answer)) for pid, answer in answers if pid not in winners)
    assert refused == {(409, "invalid_state"): 36}
