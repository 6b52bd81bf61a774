# SPDX-License-Identifier: Apache-2.0
"""A provocation passes only if the start was refused for the right reason and changed nothing."""

from __future__ import annotations

from types import SimpleNamespace

import httpx
import pytest

from dispatcher.local.errors import LocalModeError
from dispatcher.local.progress import Progress
from dispatcher.local.tour import provocations
from dispatcher.local.tour.rest import Task

LAUNCH = SimpleNamespace(token="the-token")


class SeenRun:
    """A run of which everything can be changed."""

    def __init__(self):
        self.state = "running"
        self.launches = ["first", "second"]
        self.noted = ["standby"]

    def tasks(self):
        return [Task("1", "other", -1, "success"), Task("2", "standby", -1, self.state)]

    def standby_launches(self):
        return list(self.launches)

    def entries(self):
        return list(self.noted)


@pytest.fixture
def run():
    return SeenRun()


@pytest.fixture
def claim(monkeypatch, run):
    """Make the claim that is answered as given, after it did what is given."""

    def claim(status, body, effect=lambda: None):
        def answer(_launch):
            effect()
            return httpx.Response(status, json=body)

        monkeypatch.setattr(provocations, "StalledScheduler", lambda: SimpleNamespace(claim=answer))
        provocations.Provocations(run, None, Progress()).second_claimant(LAUNCH)

    return claim


def refusal(reason):
    return {"detail": {"reason": reason, "message": "no"}}


def test_a_refusal_that_changed_nothing_is_shown(claim, capsys):
    claim(409, refusal("launch_consumed"))

    assert (
        "refused: launch_consumed - a second claimant of standby, launch the-token" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (200, {}, "answered with HTTP 200"),
        (404, refusal("launch_consumed"), "answered with HTTP 404"),
        (409, refusal("launch_superseded"), "refused for launch_superseded, not for launch_consumed"),
        (409, {"detail": "plain text"}, "refused for None"),
        (409, {"detail": {"reason": "invalid_state"}}, "refused for invalid_state"),
    ],
)
def test_any_other_answer_is_an_error(claim, status, body, complaint):
    with pytest.raises(LocalModeError, match=complaint):
        claim(status, body)


@pytest.mark.parametrize(
    "effect",
    [
        lambda run: setattr(run, "state", "failed"),
        lambda run: run.launches.append("third"),
        lambda run: run.noted.append("standby"),
    ],
)
def test_a_refusal_that_changed_something_is_an_error(claim, run, effect):
    with pytest.raises(LocalModeError, match="changed something"):
        claim(409, refusal("launch_consumed"), lambda: effect(run))
