# SPDX-License-Identifier: Apache-2.0
"""The protocol holds under any interleaving that hypothesis finds."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from tests.unit.protocol_model.machine import machine_for
from tests.unit.protocol_model.profiles import SEARCH
from tests.unit.protocol_model.rules import Rules


def test_the_protocol_holds():
    run_state_machine_as_test(machine_for(Rules()), settings=SEARCH)
