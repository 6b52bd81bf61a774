# SPDX-License-Identifier: Apache-2.0
"""How much longer a claim and a heartbeat take with the fence, against the same calls without the plugin.

Both servers run on the same database at the same time, and the calls take turns, so that what else the
machine does falls on both.
"""

from __future__ import annotations

import time
from statistics import median

import httpx
import pytest

from tests.support.fence_calls import guarded, queued_launch

CLAIMS = 150
HIGHEST_RATIO = 2.0


@pytest.mark.timeout(900)
def test_the_fence_costs_less_than_the_call_itself(db_session, api_server):
    seconds = {(name, call): [] for name in ("fence", "stock") for call in ("run", "heartbeat")}
    urls = {"fence": api_server(workers=2).url, "stock": api_server(with_plugin=False, workers=2).url}
    clients = {name: httpx.Client(base_url=url, timeout=60) for name, url in urls.items()}
    for number in range(CLAIMS):
        for name, client in clients.items():
            worker = guarded(client, queued_launch(db_session, run_id=f"{name}-{number}"))
            for call in ("run", "heartbeat"):
                began = time.perf_counter()
                answer = getattr(worker, call)()
                seconds[name, call].append(time.perf_counter() - began)
                assert answer.is_success, answer.text
    for client in clients.values():
        client.close()

    for call in ("run", "heartbeat"):
        fence, stock = median(seconds["fence", call]), median(seconds["stock", call])
        print(f"{call}: {stock * 1000:.1f} ms without, {fence * 1000:.1f} ms with: {fence / stock:.2f}")
        assert fence / stock < HIGHEST_RATIO
