# SPDX-License-Identifier: Apache-2.0
"""Each scenario ends well under the protocol as it is."""

from __future__ import annotations

import pytest

from tests.unit.protocol_model import scenarios
from tests.unit.protocol_model.rules import Rules

ALL = [
    scenarios.stalled_scheduler_wakes_up,
    scenarios.requeued_between_check_and_write,
    scenarios.retried_send_meets_the_claim,
    scenarios.queueing_is_rolled_back,
    scenarios.delivered_twice,
    scenarios.delivered_twice_at_once,
    scenarios.cleared_between_judgement_and_claim,
    scenarios.claims_a_restarting_task,
    scenarios.old_message_of_an_unrecorded_run,
    scenarios.old_message_after_deferral,
    scenarios.answer_to_the_claim_is_lost,
    scenarios.late_success_of_a_rescheduled_sensor,
    scenarios.late_end_of_an_old_launch,
    scenarios.second_delivery_dies,
    scenarios.loser_in_a_pod_ends_with_zero,
    scenarios.user_marks_a_pending_task,
    scenarios.moved_to_another_executor,
    scenarios.two_schedulers_queue_one_callback,
]


@pytest.mark.parametrize("scenario", ALL, ids=lambda one: one.__name__)
def test_it_ends_well(scenario):
    scenarios.play(scenario, Rules())
