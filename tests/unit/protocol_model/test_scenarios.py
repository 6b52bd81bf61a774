# SPDX-License-Identifier: Apache-2.0
"""Each scenario ends well under the protocol as it is."""

from __future__ import annotations

import inspect

import pytest

from tests.unit.protocol_model import callback_scenarios, scenarios
from tests.unit.protocol_model.acts import play
from tests.unit.protocol_model.rules import Rules

MODULES = (scenarios, callback_scenarios)


def is_scenario(one: object) -> bool:
    """Say whether something is a scenario: a function of a world that returns nothing."""
    if not inspect.isfunction(one) or one.__module__ not in {module.__name__ for module in MODULES}:
        return False
    return list(inspect.signature(one).parameters) == ["world"] and one.__annotations__["return"] == "None"


ALL = [one for module in MODULES for one in vars(module).values() if is_scenario(one)]


@pytest.mark.parametrize("scenario", ALL, ids=lambda one: one.__name__)
def test_it_ends_well(scenario):
    play(scenario, Rules())
