# SPDX-License-Identifier: Apache-2.0
"""``airflow dispatcher launches revoke``: a person stops launches, whether they were claimed or not."""

from __future__ import annotations

import pytest
from airflow.utils.platform import getuser

from dispatcher.domain.lifecycle import LaunchState
from tests.support import callback_dispatching as on
from tests.support import dispatching as run

pytestmark = pytest.mark.usefixtures("airflow_db")


@pytest.fixture
def revoke(capsys):
    """Return a function that runs the command in this process and returns exit code and output."""
    from airflow.cli.cli_parser import get_parser

    def revoke(*arguments):
        parsed = get_parser().parse_args(["dispatcher", "launches", "revoke", *arguments])
        capsys.readouterr()
        try:
            parsed.func(parsed)
        except SystemExit as exc:
            return exc.code, capsys.readouterr().out.splitlines()
        return 0, capsys.readouterr().out.splitlines()

    return revoke


@pytest.fixture
def executor():
    return run.started_executor()


BY = f"revoked by {getuser()}"


@pytest.mark.parametrize("claimed", [False, True], ids=["waits", "runs"])
def test_a_callback_fails_and_frees_its_slot(revoke, executor, claimed):
    callback_id, token = on.sent_callback(executor)
    if claimed:
        assert on.claim(callback_id, token)

    assert revoke(token, "--reason", "wrong pager") == (0, [f"{token}: {BY}: wrong pager"])
    told = on.turn(executor, 2)

    assert [(key.id, event) for key, event in told] == [(str(callback_id), ("failed", f"{BY}: wrong pager"))]
    assert executor.slots_occupied == 0
    assert not on.claim(callback_id, token)
    on.hear(told)
    on.turn(executor, 2)
    assert on.settled(callback_id)
    assert executor.celery.revoked == {token}


@pytest.mark.parametrize("claimed", [False, True], ids=["waits", "runs"])
def test_a_task_fails_too(revoke, executor, claimed):
    token = run.queue_task(executor)
    run.loop(executor)
    if claimed:
        assert run.claim(token)

    assert revoke(token) == (0, [f"{token}: {BY}"])
    ((_, event),) = on.turn(executor, 2)

    assert event == ("failed", BY)
    assert executor.slots_occupied == 0
    assert run.launch_of(token).state is LaunchState.REVOKED


def test_what_has_ended_or_is_not_known_is_said(revoke, executor):
    callback_id, token = on.sent_callback(executor)
    assert on.claim(callback_id, token)
    on.report(callback_id, token)
    other = run.queue_task(executor)

    assert revoke(token, "none", other) == (
        1,
        [f"{token}: it has ended already (succeeded)", "none: there is no such launch", f"{other}: {BY}"],
    )
    assert run.launch_of(other).state is LaunchState.REVOKED
