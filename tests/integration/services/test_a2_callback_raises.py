# SPDX-License-Identifier: Apache-2.0
"""A2: the body of a callback raises.

Right: FAILED, with the exception's text in ``callback.output``; its end is written once; the slot is free.
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import guarded_callbacks
from tests.support import service_dispatching as run
from tests.support.dispatching import loop, queue_callback

pytestmark = [pytest.mark.needs("redis"), pytest.mark.timeout(400)]

CALLBACK = f"{guarded_callbacks.__name__}.fail"


def test_it_is_failed_with_the_exceptions_text(executor, airflow_home, worker):
    callback_id = run.new_callback(airflow_home, CALLBACK)
    queue_callback(executor, callback_id)
    told = list(loop(executor).items())
    (launch,) = run.launches_of(callback_id)
    told += run.drive_to_the_end(executor, launch.token)

    row = run.callback_row(callback_id)
    assert row.state == "failed"
    assert "ValueError: the pager is unreachable" in row.output
    (launch,) = run.launches_of(callback_id)
    assert (launch.state, launch.end_reason) == (LaunchState.FAILED, row.output)
    assert told == [], "the worker has told it, and nobody tells it again"
    assert executor.slots_occupied == 0
    assert worker.take_marks() == ["failed callback"], "the body ran once"
    assert worker.state(launch.token) == "PENDING", "the stored result is removed"
