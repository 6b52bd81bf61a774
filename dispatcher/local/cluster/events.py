# SPDX-License-Identifier: Apache-2.0
"""Event objects: what happened to a pod, for a person to read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from dispatcher.local.cluster.resources import EVENTS
from dispatcher.local.cluster.store import Json, Store

KEPT_EVENTS = 1000


@dataclass(frozen=True)
class Recorder:
    """Records events, and forgets the oldest.

    :param store: the objects.
    :param component: who records.
    """

    store: Store
    component: str
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def record(self, pod: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Record one event about a pod."""
        metadata = pod["metadata"]
        now = self.store.now()
        event = {
            "metadata": {
                "name": f"{metadata['name']}.{next(self._numbers):08x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": self.component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self.store.create(EVENTS.plural, event)
        self._forget()

    def _forget(self) -> None:
        events = self.store.objects(EVENTS.plural)
        if len(events) > KEPT_EVENTS:
            oldest = min(events, key=lambda event: int(event["metadata"]["resourceVersion"]))["metadata"]
            self.store.remove(EVENTS.plural, oldest["namespace"], oldest["name"])
