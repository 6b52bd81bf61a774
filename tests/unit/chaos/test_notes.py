# SPDX-License-Identifier: Apache-2.0
"""What bodies note is read back, also of one that was killed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.chaos import bodies
from tests.chaos.evidence import read_notes

INSTANCE = SimpleNamespace(dag_id="chaos", run_id="run_1", task_id="work", map_index=3, try_number=2)


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv(bodies.NOTES_VARIABLE, str(tmp_path / "notes"))
    monkeypatch.setenv(bodies.TOKEN_VARIABLE, "a-token")
    monkeypatch.setattr(bodies, "_work", lambda: None)
    return tmp_path / "notes"


def test_a_body_that_came_to_its_end(notes):
    bodies.run_task(INSTANCE)
    bodies.run_on_kubernetes()
    task, callback = read_notes(notes)
    assert (task.kind, task.subject) == ("task", ("chaos", "run_1", "work", 3, 2))
    assert (callback.kind, callback.subject, callback.token) == ("callback", (), "a-token")
    assert callback.place == "pod a-token"
    assert task.ended is not None
    assert task.began <= task.ended


def test_a_body_that_was_killed(notes, monkeypatch):
    def die():
        raise KeyboardInterrupt

    monkeypatch.setattr(bodies, "_work", die)
    with pytest.raises(KeyboardInterrupt):
        bodies.run_task(INSTANCE)
    (task,) = read_notes(notes)
    assert task.ended is None


def test_a_worker_is_known_by_its_name(notes, monkeypatch):
    monkeypatch.setenv(bodies.PLACE_VARIABLE, "worker 7")
    bodies.run_on_celery()
    assert [one.place for one in read_notes(notes)] == ["worker 7"]


def test_nothing_was_noted(tmp_path):
    assert read_notes(tmp_path / "notes") == []
