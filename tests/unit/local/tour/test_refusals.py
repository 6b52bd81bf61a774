# SPDX-License-Identifier: Apache-2.0
"""The tour recognises what the guard writes when a launch is refused."""

from __future__ import annotations

import uuid

from dispatcher.local.tour.refusals import LogReader, refusal_in
from workers.execution import Execution
from workers.outcomes import refused

TOKEN = str(uuid.uuid4())
EXECUTION = Execution(token=TOKEN, claimant="nonce", kind="task", subject_id=str(uuid.uuid4()))


def test_the_guards_own_line_is_recognised(caplog):
    refused(EXECUTION, "launch_superseded")

    assert refusal_in(caplog.text, TOKEN) == "launch_superseded"


def test_a_refusal_of_another_launch_is_not_taken_for_it(caplog):
    refused(EXECUTION, "launch_superseded")

    assert refusal_in(caplog.text, str(uuid.uuid4())) is None


def test_the_reader_shows_only_what_is_new(tmp_path):
    log = tmp_path / "log"
    log.write_text("old\n")
    reader = LogReader(log)
    assert reader.read() == ""

    with log.open("a") as file:
        file.write("new\n")
    assert reader.read() == "new\n"
