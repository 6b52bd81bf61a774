# SPDX-License-Identifier: Apache-2.0
"""A14: processing one callback's result raises.

Right: the heartbeat goes on, the others' ends are taken up, and this one is tried again in the next loop.
"""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Observation
from dispatcher.dispatch import reports
from dispatcher.domain.lifecycle import LaunchState
from tests.support import callback_dispatching as on
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


@pytest.fixture
def executor():
    return run.started_executor()


class Unreadable:
    """A reason that cannot be read for a while."""

    def __init__(self) -> None:
        self.broken = True

    def replace(self, *_):
        if self.broken:
            raise ValueError("no text at all")
        return "the worker was killed"


def two_callbacks(executor):
    """Send two callbacks and claim them; return the UUID and the token of each."""
    both = [on.sent_callback(executor) for _ in range(2)]
    for callback_id, token in both:
        assert on.claim(callback_id, token)
    return both


def test_an_ending_that_cannot_be_read(executor, caplog):
    (bad, bad_token), (good, good_token) = two_callbacks(executor)
    reason = Unreadable()
    executor.celery.end(Observation(bad_token, ok=False, reason=reason))
    executor.celery.end(Observation(good_token, ok=False, reason="killed"))

    for _ in range(3):
        ((key, (state, _)),) = on.turn(executor)
        assert (key.id, state) == (str(good), "failed")
    assert run.launch_of(bad_token).state is LaunchState.CLAIMED
    assert executor.slots_occupied == 1
    named = [one for one in caplog.records if bad_token in one.getMessage()]
    assert len(named) == 1, "it is named once, not in every loop"
    assert named[0].exc_info is not None

    reason.broken = False
    told = dict(on.turn(executor))
    assert {key.id for key in told} == {str(bad), str(good)}
    assert executor.slots_occupied == 0
    on.hear(told.items())
    on.turn(executor, 2)
    assert on.settled(bad)
    assert on.settled(good)


def test_an_end_that_cannot_be_told(executor, monkeypatch, caplog):
    (bad, bad_token), (good, good_token) = two_callbacks(executor)
    for token in (bad_token, good_token):
        executor.celery.end(Observation(token, ok=False, reason="killed"))
    event_of = reports.event_of

    def broken(report):
        if report.launch.token == bad_token:
            raise KeyError("cause")
        return event_of(report)

    with monkeypatch.context() as patch:
        patch.setattr(reports, "event_of", broken)
        for _ in range(2):
            assert [key.id for key, _ in on.turn(executor)] == [str(good)]
    assert len([one for one in caplog.records if bad_token in one.getMessage()]) == 1
    assert {key.id for key, _ in on.turn(executor)} == {str(bad), str(good)}
