# SPDX-License-Identifier: Apache-2.0
"""Each rule, broken on purpose, breaks an invariant: in its own scenario, or found by the machine."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.protocol_model import mutants, scenarios
from tests.unit.protocol_model.machine import machine_for
from tests.unit.protocol_model.oracle import InvariantBroken
from tests.unit.protocol_model.profiles import HUNT

FOUND_BY_THE_MACHINE = [
    mutants.Rule4DropsWhatIsClaimed,
    mutants.Rule4SendsBeforeTheCommit,
    mutants.Rule4SendsWhatIsClaimed,
    mutants.Rule7NamesTheWorker,
    mutants.Rule8AcceptsAnyClaimant,
    mutants.Rule8RefusesTheSameClaimant,
    mutants.Rule13IgnoresTheState,
    mutants.Rule13MatchesTheTaskAlone,
    mutants.Rule13TellsThatItSent,
]

SCRIPTED = [
    (mutants.Rule4SubmitsWhatAnotherOwns, scenarios.stalled_scheduler_wakes_up),
    (mutants.Rule4TrustsItsRead, scenarios.requeued_between_check_and_write),
    (mutants.Rule4DropsWhatIsClaimed, scenarios.retried_send_meets_the_claim),
    (mutants.Rule4SendsBeforeTheCommit, scenarios.queueing_is_rolled_back),
    (mutants.Rule7ClaimsByStateAlone, scenarios.old_message_of_an_unrecorded_run),
    (mutants.Rule7TrustsItsRead, scenarios.cleared_between_judgement_and_claim),
    (mutants.Rule7ClaimsWhatIsClaimed, scenarios.delivered_twice_at_once),
    (mutants.Rule7ClaimsRestarting, scenarios.claims_a_restarting_task),
    (mutants.Rule7NamesTheWorker, scenarios.delivered_twice),
    (mutants.Rule8AcceptsAnyClaimant, scenarios.delivered_twice),
    (mutants.Rule8RefusesTheSameClaimant, scenarios.answer_to_the_claim_is_lost),
    (mutants.Rule13MatchesTheTaskAlone, scenarios.requeued_between_check_and_write),
    (mutants.Rule13IgnoresTheState, scenarios.late_success_of_a_rescheduled_sensor),
    (mutants.Rule13IgnoresTheState, scenarios.user_marks_a_pending_task),
    (mutants.Rule13BelievesAnyArtefact, scenarios.second_delivery_dies),
    (mutants.Rule13BelievesAnyArtefact, scenarios.loser_in_a_pod_ends_with_zero),
    (mutants.Rule13ReportsForOtherExecutors, scenarios.moved_to_another_executor),
    (mutants.Rule13TellsThatItSent, scenarios.late_end_of_an_old_launch),
]


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("mutant", FOUND_BY_THE_MACHINE, ids=name)
def test_the_machine_finds(mutant):
    with pytest.raises(InvariantBroken):
        run_state_machine_as_test(machine_for(mutant()), settings=HUNT)


@pytest.mark.parametrize(("mutant", "scenario"), SCRIPTED, ids=name)
def test_the_scenario_catches(mutant, scenario):
    with pytest.raises(InvariantBroken):
        scenarios.play(scenario, mutant())
