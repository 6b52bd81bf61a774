# SPDX-License-Identifier: Apache-2.0
"""A seed names one plan, and every blow occurs in plans."""

from __future__ import annotations

from itertools import islice, pairwise

from tests.chaos.plan import WEIGHTS, Blow, strikes


def test_a_seed_is_one_plan():
    assert list(islice(strikes(7), 50)) == list(islice(strikes(7), 50))
    assert list(islice(strikes(7), 50)) != list(islice(strikes(8), 50))


def test_strikes_come_one_after_the_other():
    plan = list(islice(strikes(1), 100))
    assert all(earlier.at < later.at for earlier, later in pairwise(plan))
    assert all(0 <= one.pick < 1 for one in plan)


def test_every_blow_is_dealt():
    assert set(WEIGHTS) == set(Blow)
    assert {one.blow for one in islice(strikes(1), 500)} == set(Blow)
