# SPDX-License-Identifier: Apache-2.0
"""Work that is done ahead, in the time in which the database is waited for."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
V = TypeVar("V")


@contextmanager
def made_meanwhile(make: Callable[[T], V], items: Iterable[T]) -> Iterator[list[V]]:
    """Make as much as there is time for while the body of ``with`` runs, in a thread that ends with it.

    What is made may turn out not to be needed. Once the body is left, nothing more is made.

    :param make: makes one; raises nothing
    :param items: of what
    :returns: what was made, of the first of the items and in their order
    """
    made: list[V] = []
    over = threading.Event()

    def work() -> None:
        for item in items:
            if over.is_set():
                return
            made.append(make(item))

    thread = threading.Thread(target=work, name="made-meanwhile", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()
