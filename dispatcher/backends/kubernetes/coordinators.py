# SPDX-License-Identifier: Apache-2.0
"""What the coordinator of a queue (for tasks in other languages) wants of the pods of its tasks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatcher.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorPods:
    """What a coordinator declares in its ``extra``.

    :param pod_template_file: goes before any other template; None for the usual one
    :param image: goes before ``[kubernetes_executor]``, but not before an override; None for the usual one
    """

    pod_template_file: str | None = None
    image: str | None = None


class Coordinators:
    """Looks up ``[sdk] queue_to_coordinator`` and ``coordinators``, once for each queue.

    A mistake there is a warning: the pods of the queue are made as if it had no coordinator.
    """

    def __init__(self) -> None:
        self._known: dict[str, CoordinatorPods] = {}

    def of_queue(self, queue: str | None) -> CoordinatorPods:
        """Return what the coordinator of a queue wants.

        :param queue: the queue of a task; None for what has none
        """
        if not queue:
            return CoordinatorPods()
        if queue not in self._known:
            self._known[queue] = _look_up(queue)
        return self._known[queue]


def _look_up(queue: str) -> CoordinatorPods:
    # Imported late: it loads Airflow's models.
    from dispatcher.compat import coordinator_extra

    try:
        return _pods_of(coordinator_extra(queue) or {})
    except ConfigurationError as exc:
        log.warning("The coordinator of queue %s is not heeded for its pods: %s", queue, exc)
        return CoordinatorPods()


def _pods_of(extra: Mapping[str, Any]) -> CoordinatorPods:
    template = extra.get("pod_template_file")
    if template is not None and not isinstance(template, str):
        raise ConfigurationError("pod_template_file in its extra is not a path")
    repository, tag = extra.get("worker_container_repository"), extra.get("worker_container_tag")
    return CoordinatorPods(template or None, f"{repository}:{tag}" if repository and tag else None)
