# SPDX-License-Identifier: Apache-2.0
"""Claimed launches of which there is no pod, and no knowledge of one that was.

A pod that was made by a scheduler which died before it learned so is known by its label alone. If it went
away before another scheduler looked, no watch ever tells of it. A watch that is cut off shows no pod either,
so only a list that was asked for after the first look proves anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from dispatcher.backends.kubernetes.options import Scope
    from dispatcher.backends.kubernetes.table import PodTable

PATIENCE = 60.0
"""Seconds for which lists and watches must show no pod of a launch."""

WHY = "the cluster has no pod of it"


class Podless:
    """Takes note of since when there has been no pod of a launch.

    :param table: what is known of pods
    :param clock: monotonic seconds
    """

    def __init__(self, table: PodTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        self._since: dict[str, float] = {}

    def find(self, tokens: Collection[str], scopes: Iterable[Scope]) -> Mapping[str, str]:
        """Return the launches of which there has been no pod for long, by token, and what shows it.

        :param tokens: launches that were claimed: each had a pod
        :param scopes: everywhere that there may be pods
        """
        now = self._clock()
        missing = self._table.unheard_of(tokens)
        self._since = {token: self._since.get(token, now) for token in missing}
        listed = self._table.listed_since(scopes)
        return {
            token: WHY for token, since in self._since.items() if now - since >= PATIENCE and listed > since
        }
