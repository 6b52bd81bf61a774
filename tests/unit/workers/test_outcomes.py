# SPDX-License-Identifier: Apache-2.0
"""What is logged and counted when a launch is refused or stopped."""

from __future__ import annotations

import logging

import pytest
from airflow.sdk.observability import stats

from workers import metrics
from workers.execution import Execution
from workers.outcomes import Refused, Stopped, refused, stopped

EXECUTION = Execution(token="the-token", claimant="nonce", kind="task", subject_id="the-task")


class Counters:
    """Takes the place of a metrics client."""

    def __init__(self):
        self.counted = []

    def incr(self, stat, count=1, rate=1, *, tags=None):  # noqa: ARG002
        self.counted.append((stat, count, tags))


@pytest.fixture
def counters():
    counters = Counters()
    stats.initialize(factory=lambda: counters, export_legacy_names=False)
    yield counters
    metrics.initialize()


@pytest.mark.parametrize(
    ("end", "outcome", "counter"),
    [
        (refused, Refused("launch_revoked"), "dispatcher.launch.refused"),
        (stopped, Stopped("launch_revoked", EXECUTION.claimant), "dispatcher.launch.stopped"),
    ],
)
def test_an_end_is_logged_in_one_line_and_counted(caplog, counters, end, outcome, counter):
    with caplog.at_level(logging.INFO):
        assert end(EXECUTION, "launch_revoked") == outcome

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for word in ("the-token", "the-task", "launch_revoked"):
        assert word in record.getMessage()
    assert "\n" not in record.getMessage()
    assert counters.counted == [(counter, 1, {"kind": "task", "reason": "launch_revoked"})]


def test_metrics_are_off_by_default(counters):
    metrics.initialize()

    refused(EXECUTION, "launch_revoked")

    assert counters.counted == []
