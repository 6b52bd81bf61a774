# SPDX-License-Identifier: Apache-2.0
"""What a worker tells of what it consumes and runs: commands of remote control.

Importing this module registers them; ``workers.celery_guard`` does. They tell counts, names and ids, where
Celery's own commands would answer with the messages and the JWTs in them.
"""

from __future__ import annotations

from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import inspect_command

from dispatcher.domain.wire import RUNNING_COMMAND

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


@inspect_command(name=RUNNING_COMMAND, variadic="ids")  # type: ignore[untyped-decorator]  # Celery has no types
def tell_running(state: Any, ids: list[str], **_: Any) -> list[str]:  # noqa: ARG001
    """Answer which of some messages this worker has.

    Celery's own command keeps one delivery of each id in mind: it forgets the one that runs as soon as
    another one was dropped.

    :param state: Celery's, of the worker
    :param ids: task ids
    """
    held = {request.id for request in (*worker_state.active_requests, *worker_state.reserved_requests)}
    return sorted(held.intersection(ids))
