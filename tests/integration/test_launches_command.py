# SPDX-License-Identifier: Apache-2.0
"""``airflow dispatcher launches list`` on the metadata database of this run."""

from __future__ import annotations

import json

import pytest

from dispatcher.domain.lifecycle import OPEN, BackendName, LaunchKind, LaunchState
from dispatcher.ledger.manager import DispatcherDBManager
from tests.support.launches import add_launch


@pytest.fixture
def run(airflow_db, capsys):
    """Return a function that runs the command in this process and returns the rows that it printed."""
    from airflow.cli.cli_parser import get_parser

    def run(*arguments):
        parsed = get_parser().parse_args(["dispatcher", "launches", "list", "-o", "json", *arguments])
        parsed.func(parsed)
        return json.loads(capsys.readouterr().out)

    return run


def _add(session, **columns):
    launch = add_launch(session, **columns)
    session.commit()
    return launch.token


def _tokens(rows):
    return [row["token"] for row in rows]


def test_newest_first_up_to_the_limit(run, db_session):
    tokens = [_add(db_session) for _ in range(3)]
    assert _tokens(run()) == tokens[::-1]
    assert _tokens(run("--limit", "2")) == tokens[:0:-1]


def test_fifty_by_default(run, db_session):
    for _ in range(51):
        add_launch(db_session)
    db_session.commit()
    assert len(run()) == 50


@pytest.mark.parametrize(
    "arguments",
    [
        ("--state", "issued,lost"),
        ("--state", "issued", "--state", "Lost"),
        ("--state", " issued , lost "),
    ],
)
def test_by_several_states(run, db_session, arguments):
    by_state = {state: _add(db_session, state=state) for state in LaunchState}
    expected = [by_state[LaunchState.LOST], by_state[LaunchState.ISSUED]]
    assert _tokens(run(*arguments)) == expected


def test_open_ones(run, db_session):
    by_state = {state: _add(db_session, state=state) for state in LaunchState}
    assert set(_tokens(run("--open"))) == {by_state[state] for state in OPEN}
    assert _tokens(run("--open", "--state", "claimed,failed")) == [by_state[LaunchState.CLAIMED]]
    assert run("--open", "--state", "failed") == []


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        (("--dag-id", "other"), {"dag_id": "other"}),
        (("--task-id", "other"), {"task_id": "other"}),
        (("--run-id", "other"), {"run_id": "other"}),
        (("--kind", "callback"), {"kind": LaunchKind.CALLBACK}),
        (("--backend", "kubernetes"), {"backend": BackendName.KUBERNETES}),
    ],
)
def test_by_one_criterion(run, db_session, arguments, columns):
    _add(db_session)
    wanted = _add(db_session, **columns)
    assert _tokens(run(*arguments)) == [wanted]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--state", "runing"), ["'runing'", *LaunchState]),
        (("--state", "issued,"), ["''", "issued"]),
        (("--kind", "dag"), ["task", "callback"]),
        (("--backend", "local"), ["celery", "kubernetes"]),
        (("--limit", "0"), ["'0'"]),
    ],
)
def test_an_unknown_value_is_named_with_the_allowed_ones(run, capsys, arguments, named):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    for part in named:
        assert part in error


def test_a_missing_table_is_said_in_one_line(run, db_session):
    manager = DispatcherDBManager(db_session)
    with db_session.get_bind().begin() as connection:
        manager.drop_tables(connection)
    try:
        with pytest.raises(SystemExit) as caught:
            run()
    finally:
        db_session.rollback()
        manager.initdb()
    message = str(caught.value.code)
    assert "run `airflow db migrate`" in message
    assert "\n" not in message
