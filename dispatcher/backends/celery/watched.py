# SPDX-License-Identifier: Apache-2.0
"""Which results are waited for, and what of that whoever reads them has yet to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Changes:
    """What to wait for from now on, and what no more.

    :param added: task ids; that one is waited for already is no error
    :param dropped: task ids; that one is not waited for is no error
    """

    added: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()


class Watched:
    """The results that are waited for; a call costs what it changes, and not what there is."""

    def __init__(self) -> None:
        self._tokens: set[str] = set()
        self._added: set[str] = set()
        self._dropped: set[str] = set()
        self._told: object = None

    def add(self, tokens: Iterable[str]) -> None:
        """Wait for the results of ``tokens``."""
        for token in tokens:
            self._tokens.add(token)
            self._added.add(token)
            self._dropped.discard(token)

    def drop(self, tokens: Iterable[str]) -> None:
        """Wait for the results of ``tokens`` no more."""
        for token in tokens:
            if token in self._tokens:
                self._tokens.remove(token)
                self._added.discard(token)
                self._dropped.add(token)

    def __contains__(self, token: str) -> bool:
        return token in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def changes(self, reader: object) -> Changes:
        """Return what ``reader`` does not know yet: all there is, where another one was told so far.

        :param reader: who is about to be told
        """
        if reader is not self._told:
            return Changes(frozenset(self._tokens))
        return Changes(frozenset(self._added), frozenset(self._dropped))

    def told(self, reader: object) -> None:
        """Take note that ``reader`` was told of all changes.

        :param reader: who was
        """
        self._told = reader
        self._added.clear()
        self._dropped.clear()
