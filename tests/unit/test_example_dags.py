# SPDX-License-Identifier: Apache-2.0
"""The example DAG is what the tour expects, and its functions note what they must."""

from __future__ import annotations

import pytest

from dispatcher.example_dags import callbacks, journal
from dispatcher.example_dags.journal import Entry
from dispatcher.local.environment import example_dags
from dispatcher.local.tour.expectations import CALLBACKS, DAG_ID, PARTS

# Airflow reads .airflowignore with a part of pathspec that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


@pytest.fixture(scope="module")
def dag():
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=example_dags())
    assert bag.import_errors == {}
    assert set(bag.dags) == {DAG_ID}
    return bag.dags[DAG_ID]


def test_the_tasks_and_their_queues_are_those_of_the_tour(dag):
    assert {task.task_id: task.queue for task in dag.tasks} == {part.task_id: part.queue for part in PARTS}


def test_the_deadlines_call_the_functions_of_the_tour(dag):
    paths = [alert.callback.path for alert in dag.deadline]

    assert paths == [f"{callbacks.__name__}.{name}" for name in CALLBACKS]
    assert all(callable(getattr(callbacks, name)) for name in CALLBACKS)


def test_only_the_dag_file_is_parsed(dag):
    assert dag.fileloc.endswith("hybrid_tour.py")


def test_what_is_noted_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv(journal.JOURNAL_VARIABLE, str(tmp_path / "journal"))
    journal.note("here")
    monkeypatch.setenv(journal.PLACE_VARIABLE, "celery")
    journal.note("task", 2, 3)

    assert journal.read(tmp_path / "journal") == [
        Entry("here", -1, 0, "elsewhere"),
        Entry("task", 2, 3, "celery"),
    ]


def test_callbacks_note_their_names(monkeypatch, tmp_path):
    monkeypatch.setenv(journal.JOURNAL_VARIABLE, str(tmp_path / "journal"))
    for name in CALLBACKS:
        getattr(callbacks, name)()

    assert [entry.subject for entry in journal.read(tmp_path / "journal")] == list(CALLBACKS)


def test_without_a_journal_nothing_is_noted_and_no_gate_is_waited_for(monkeypatch, tmp_path):
    for name in (journal.JOURNAL_VARIABLE, journal.GATE_VARIABLE):
        monkeypatch.delenv(name, raising=False)

    journal.note("nowhere")
    journal.wait_for_gate()

    assert journal.read(tmp_path / "journal") == []


def test_an_open_gate_lets_pass_and_a_closed_one_does_not(monkeypatch, tmp_path):
    monkeypatch.setenv(journal.GATE_VARIABLE, str(tmp_path / "gate"))
    monkeypatch.setattr(journal, "GATE_SECONDS", -1)
    with pytest.raises(TimeoutError, match="did not open"):
        journal.wait_for_gate()

    (tmp_path / "gate").touch()
    journal.wait_for_gate()
