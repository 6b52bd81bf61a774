# SPDX-License-Identifier: Apache-2.0
"""Reads what a run leaves behind: Airflow's rows, the ledger and its audit, and the notes of the bodies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import inspect, text

from dispatcher.domain.lifecycle import OPEN
from tests.chaos.records import Body, Callback, Evidence, Launch, Step, Task
from tests.chaos.verdict import CALLBACK_ENDED, TASK_ENDED

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

_AUDIT = """
CREATE TABLE chaos_audit (
    number bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    token varchar NOT NULL, before varchar, after varchar NOT NULL, claimant varchar, owner varchar
);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_audit (token, before, after, claimant, owner) VALUES (
        NEW.token, CASE TG_OP WHEN 'UPDATE' THEN OLD.state END, NEW.state, NEW.claimant, NEW.scheduler_job_id
    );
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE ON dispatcher_launch
    FOR EACH ROW EXECUTE FUNCTION chaos_note();
"""

_TASKS_BEFORE_3_4 = "SELECT dag_id, run_id, task_id, map_index, try_number, state FROM task_instance"
_TASKS = """
SELECT dag_id, run_id, task_id, region_index, try_number, state FROM task_instance WHERE working_set
"""
_CALLBACKS = "SELECT CAST(id AS varchar) AS id, state, output FROM callback WHERE type = 'executor'"
_LAUNCHES = "SELECT token, kind, subject_id, state, end_reason FROM dispatcher_launch ORDER BY sequence"
_STEPS = """
SELECT token, before, after, claimant, owner, CAST(extract(epoch FROM at) AS float) AS at
FROM chaos_audit ORDER BY number
"""
_OPEN_RUNS = "SELECT count(*) FROM dag_run WHERE state NOT IN ('success', 'failed')"
_UNSETTLED = "SELECT count(*) FROM dispatcher_launch WHERE settled_at IS NULL"


@dataclass(frozen=True, slots=True)
class Rest:
    """What is still to be done.

    :param tasks: task instances that have not ended
    :param all_tasks: task instances that there are
    :param unsettled: launches that their scheduler has not settled, ended or not
    """

    runs: int
    tasks: int
    all_tasks: int
    callbacks: int
    launches: int
    unsettled: int

    @property
    def nothing(self) -> bool:
        """Whether everything has come to its end."""
        return not (self.runs or self.tasks or self.callbacks or self.launches or self.unsettled)

    def __str__(self) -> str:
        """Tell people."""
        return (
            f"{self.runs} runs, {self.tasks} of {self.all_tasks} tasks, {self.callbacks} callbacks "
            f"and {self.launches} launches are open, {self.unsettled} launches are not settled"
        )


def install_audit(engine: Engine) -> None:
    """Have the database note each step of each launch, whoever makes it.

    :param engine: the migrated metadata database
    """
    with engine.begin() as connection:
        connection.execute(text(_AUDIT))


def rest(engine: Engine) -> Rest:
    """Return what is still to be done."""
    with engine.connect() as connection:
        tasks, callbacks, launches = _tasks(connection), _callbacks(connection), _launches(connection)
        return Rest(
            runs=connection.scalar(text(_OPEN_RUNS)),
            tasks=sum(one.state not in TASK_ENDED for one in tasks),
            all_tasks=len(tasks),
            callbacks=sum(one.state not in CALLBACK_ENDED for one in callbacks),
            launches=sum(one.state in OPEN for one in launches),
            unsettled=connection.scalar(text(_UNSETTLED)),
        )


def gather(engine: Engine, notes: Path) -> Evidence:
    """Return the evidence; who was killed, and which slots are held, others know.

    :param notes: what the bodies appended to
    """
    with engine.connect() as connection:
        steps = [Step(**row) for row in connection.execute(text(_STEPS)).mappings()]
        return Evidence(
            launches=_launches(connection),
            steps=steps,
            bodies=read_notes(notes),
            tasks=_tasks(connection),
            callbacks=_callbacks(connection),
        )


def read_notes(notes: Path) -> list[Body]:
    """Return the runs of bodies that a file tells of.

    :param notes: may not exist
    """
    began: dict[str, dict[str, Any]] = {}
    ended: dict[str, float] = {}
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    for note in map(json.loads, lines):
        if note["event"] == "began":
            began[note["body"]] = note
        else:
            ended[note["body"]] = note["at"]
    return [
        Body(
            kind=note["kind"],
            subject=tuple(note["subject"]),
            token=note["token"],
            place=note["place"],
            began=note["at"],
            ended=ended.get(body),
        )
        for body, note in began.items()
    ]


def _tasks(connection: Any) -> list[Task]:
    # Airflow 3.4 keeps earlier tries in the same table, in the states in which they were given up.
    columns = {column["name"] for column in inspect(connection).get_columns("task_instance")}
    statement = _TASKS if "working_set" in columns else _TASKS_BEFORE_3_4
    return [
        Task(subject=tuple(subject), state=state) for *subject, state in connection.execute(text(statement))
    ]


def _callbacks(connection: Any) -> list[Callback]:
    return [Callback(**row) for row in connection.execute(text(_CALLBACKS)).mappings()]


def _launches(connection: Any) -> list[Launch]:
    return [Launch(**row) for row in connection.execute(text(_LAUNCHES)).mappings()]
