# SPDX-License-Identifier: Apache-2.0
"""Each scenario ends well under the protocol as it is."""

from __future__ import annotations

import inspect

import pytest

from tests.unit.protocol_model import scenarios
from tests.unit.protocol_model.rules import Rules


def takes_a_world(one: object) -> bool:
    """Say whether something in ``scenarios`` is a scenario: a function of a world, that returns nothing."""
    if not inspect.isfunction(one) or one.__module__ != scenarios.__name__:
        return False
    return list(inspect.signature(one).parameters) == ["world"] and one.__annotations__["return"] == "None"


ALL = [one for one in vars(scenarios).values() if takes_a_world(one)]


@pytest.mark.parametrize("scenario", ALL, ids=lambda one: one.__name__)
def test_it_ends_well(scenario):
    scenarios.play(scenario, Rules())
