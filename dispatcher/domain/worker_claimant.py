# SPDX-License-Identifier: Apache-2.0
"""Which process of a Celery worker a claim came from: the name that worker and backend agree on (rule 13).

A message may be delivered more than once, and all its deliveries share one result: that a delivery failed
says nothing of the one that holds the claim. So the worker has a name that is new at each start, and each
process of its pool one made of that and its pid. The guard begins the nonce with it, and what a worker stores
of a process that was killed tells it. The nonce goes on with something of its own for each delivery (rule 7).
"""

from __future__ import annotations

WORKER_VARIABLE = "AIRFLOW_LAUNCH_WORKER"
"""Environment variable with the name of a Celery worker, which its processes inherit."""


def process_of_worker(worker: str, pid: int) -> str:
    """Return how every nonce begins that is made in one process of a worker.

    :param worker: what ``WORKER_VARIABLE`` holds
    :param pid: of the process
    """
    return f"{worker}.{pid}/"
