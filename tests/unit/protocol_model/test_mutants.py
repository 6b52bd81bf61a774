# SPDX-License-Identifier: Apache-2.0
"""Each rule, broken on purpose, breaks an invariant: in its own scenario, or found by the machine."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.protocol_model import callback_scenarios, mutants, scenarios
from tests.unit.protocol_model.acts import play
from tests.unit.protocol_model.machine import machine_for
from tests.unit.protocol_model.oracle import InvariantBroken
from tests.unit.protocol_model.profiles import HUNT
from tests.unit.protocol_model.rules import Rules

FOUND_BY_THE_MACHINE = [
    mutants.Rule2KeepsAStaleToken,
    mutants.Rule3LeavesOlderLaunchesOpen,
    mutants.Rule4SendsBeforeTheCommit,
    mutants.Rule6ResendsUnderANewToken,
    mutants.Rule7ClaimsWhatIsClaimed,
    mutants.Rule7NamesTheWorker,
    mutants.Rule8AcceptsAnyClaimant,
    mutants.Rule13IgnoresTheState,
    mutants.Rule13MatchesTheTaskAlone,
    mutants.Rule13TellsThatItSent,
    mutants.Rule14RemovesBeforeItSettles,
    mutants.Rule18HandsBackRunningTasks,
    mutants.Rule18LeavesTheOwner,
    mutants.Rule18TakesFromTheLiving,
]
"""Found within a few seconds; the others need a longer search than a test run allows."""

SCRIPTED = [
    (mutants.Rule2KeepsAStaleToken, scenarios.token_is_not_fresh),
    (mutants.Rule2LeavesATaskWithoutToken, scenarios.task_brings_no_token),
    (mutants.Rule3LeavesOlderLaunchesOpen, scenarios.cleared_while_queued),
    (mutants.Rule3ListensToOlderLaunches, scenarios.old_launch_reports_again),
    (
        mutants.Rule3SupersedesARunningCallback,
        callback_scenarios.older_launch_is_claimed_first,
    ),
    (mutants.Rule4SubmitsWhatAnotherOwns, scenarios.stalled_scheduler_wakes_up),
    (mutants.Rule4TrustsItsRead, scenarios.requeued_between_check_and_write),
    (mutants.Rule4DropsWhatIsClaimed, scenarios.retried_send_meets_the_claim),
    (mutants.Rule4SendsBeforeTheCommit, scenarios.queueing_is_rolled_back),
    (mutants.Rule4SendsWhatIsClaimed, callback_scenarios.dropped_launch_of_a_callback),
    (mutants.Rule6RelaunchesWhatRuns, scenarios.claimed_before_the_relaunch),
    (mutants.Rule6RelaunchesWhatIsNotQueued, scenarios.marked_before_the_relaunch),
    (mutants.Rule6RelaunchesAnOldLaunch, scenarios.queued_anew_before_the_relaunch),
    (mutants.Rule6LeavesTheOldLaunchOpen, scenarios.lost_again_and_again),
    (mutants.Rule6RelaunchesForEver, scenarios.lost_again_and_again),
    (mutants.Rule6RelaunchesACallbackThatRan, callback_scenarios.lost_after_the_other_launch_was_claimed),
    (mutants.Rule6ResendsUnderANewToken, scenarios.retried_send_meets_the_claim),
    (mutants.Rule7ClaimsByStateAlone, scenarios.old_message_of_an_unrecorded_run),
    (mutants.Rule7TrustsItsRead, scenarios.cleared_between_judgement_and_claim),
    (mutants.Rule7ClaimsWhatIsClaimed, scenarios.delivered_twice_at_once),
    (mutants.Rule7ClaimsRestarting, scenarios.claims_a_restarting_task),
    (mutants.Rule7NamesTheWorker, scenarios.delivered_twice),
    (mutants.Rule8AcceptsAnyClaimant, scenarios.delivered_twice),
    (mutants.Rule8RefusesTheSameClaimant, scenarios.answer_to_the_claim_is_lost),
    (mutants.Rule8RefusesDuplicatesOfStockWorkers, scenarios.stock_worker_gets_a_duplicate),
    (mutants.Rule13MatchesTheTaskAlone, scenarios.requeued_between_check_and_write),
    (mutants.Rule13IgnoresTheState, scenarios.late_success_of_a_rescheduled_sensor),
    (mutants.Rule13IgnoresTheState, scenarios.user_marks_a_pending_task),
    (mutants.Rule13BelievesAnyArtefact, scenarios.second_delivery_dies),
    (mutants.Rule13BelievesAnyArtefact, scenarios.loser_in_a_pod_ends_with_zero),
    (mutants.Rule13ReportsForOtherExecutors, scenarios.moved_to_another_executor),
    (mutants.Rule13TellsThatItSent, scenarios.late_end_of_an_old_launch),
    (mutants.Rule14ReportsOnce, scenarios.event_is_skipped),
    (mutants.Rule14RemovesBeforeItSettles, scenarios.scheduler_dies_between_end_and_report),
    (mutants.Rule17LetsGoOfWhatIsClaimed, scenarios.claimed_while_stuck_handling_goes_on),
    (mutants.Rule18HandsBackRunningTasks, scenarios.scheduler_dies_while_a_task_runs),
    (mutants.Rule18LeavesTheOwner, scenarios.scheduler_dies_before_the_send),
    (mutants.Rule18TakesFromTheLiving, scenarios.other_scheduler_looks_for_orphans),
    (mutants.Rule19RunsWhatRanElsewhere, callback_scenarios.callback_is_delivered_after_the_other_launch),
    (mutants.Rule19TrustsItsRead, callback_scenarios.both_launches_of_a_callback_ask),
    (mutants.Rule19SendsTheNewerLaunch, callback_scenarios.callback_is_queued_anew_after_it_ran),
    (mutants.Rule19ReportsTheDroppedLaunch, callback_scenarios.dropped_launch_of_a_callback),
    (mutants.Rule19WaitsForEver, callback_scenarios.message_of_a_callback_is_lost),
    (mutants.Rule19KeepsWhatNobodyRuns, callback_scenarios.worker_vanishes_with_its_callback),
    (mutants.Rule19GivesUpWhatRuns, callback_scenarios.callback_runs_for_long),
    (mutants.Rule19InventsAnOutcome, callback_scenarios.callback_is_queued_anew_after_it_ran),
    (mutants.Rule20PrunesByAgeAlone, scenarios.pruned_while_deferred),
]


def test_every_rule_of_the_model_has_a_mutant_and_every_mutant_a_scenario():
    broken = {mutant for mutant, _ in SCRIPTED}
    classes = {one for one in vars(mutants).values() if inspect.isclass(one) and issubclass(one, Rules)}
    assert broken == classes - {Rules, mutants.NobodyGivesUp}
    rules = {int(re.match(r"Rule(\d+)", one.__name__)[1]) for one in broken}
    assert rules == {2, 3, 4, 6, 7, 8, 13, 14, 17, 18, 19, 20}


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("mutant", FOUND_BY_THE_MACHINE, ids=name)
def test_the_machine_finds(mutant):
    with pytest.raises(InvariantBroken):
        run_state_machine_as_test(machine_for(mutant()), settings=HUNT)


@pytest.mark.parametrize(("mutant", "scenario"), SCRIPTED, ids=name)
def test_the_scenario_catches(mutant, scenario):
    with pytest.raises(InvariantBroken):
        play(scenario, mutant())
