# SPDX-License-Identifier: Apache-2.0
"""What a worker tells of its own consumption: the remote control command that ``workers.health`` asks.

Importing this module registers the command; ``workers.celery_guard`` does. It tells counts and names, where
Celery's own commands would answer with the messages and the JWTs in them.
"""

from __future__ import annotations

from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import inspect_command

COMMAND = "dispatcher_consumption"


@inspect_command(name=COMMAND)  # type: ignore[untyped-decorator]  # Celery has no types
def tell_consumption(state: Any) -> dict[str, Any]:
    """Answer which queues this worker consumes, and how much it has taken.

    :param state: Celery's, of the worker
    :returns: ``consumes``: it has a consumer, if only of no queue; ``queues``; ``received``: messages since
        the start; ``held``: received and not finished; ``prefetch``: how many it may hold, 0 for any number
    """
    consumer = state.consumer
    queues = consumer.task_consumer.queues if consumer.task_consumer else ()
    return {
        "consumes": consumer.task_consumer is not None,
        "queues": [queue.name for queue in queues],
        "received": sum(worker_state.total_count.values()),
        "held": len(worker_state.reserved_requests),
        "prefetch": _most(consumer),
    }


def _most(consumer: Any) -> int:
    """Return how many messages a consumer may hold."""
    prefetch = consumer.qos.value if consumer.qos else 0
    if not consumer.app.conf.worker_disable_prefetch:
        return int(prefetch)
    return int(min(prefetch or consumer.pool.num_processes, consumer.pool.num_processes))
