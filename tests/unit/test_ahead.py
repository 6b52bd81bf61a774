# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import threading

import pytest

from dispatcher.dispatch.ahead import made_meanwhile

LONG = 60.0


def test_things_are_made_while_the_body_waits():
    all_made = threading.Event()

    def make(number: int) -> int:
        if number == 3:
            all_made.set()
        return number * number

    with made_meanwhile(make, [1, 2, 3]) as made:
        assert all_made.wait(LONG)

    assert made == [1, 4, 9]


def test_nothing_more_is_made_once_the_body_is_left():
    began = threading.Event()

    def make(number: int) -> int:
        began.set()
        return number

    # Of endlessly many: it would never come back.
    with made_meanwhile(make, itertools.count()) as made:
        assert began.wait(LONG)

    count = len(made)
    assert made == list(range(count))
    assert count > 0


def test_nothing_more_is_made_once_the_body_failed():
    with pytest.raises(LookupError), made_meanwhile(str, itertools.count()):
        raise LookupError
