# SPDX-License-Identifier: Apache-2.0
"""Players: they claim and report as workers do, over HTTP, and instead of a body they write two notes.

A whole task process costs seconds of CPU, and what is tested here happens around it. The notes are those of
``tests.chaos.bodies``.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.support.callback_calls import CallbackWorker
from tests.support.fence_calls import Worker
from workers.execution import read_launch_token

if TYPE_CHECKING:
    from collections.abc import Callable

BODY_SECONDS = 0.1
"""How long a body takes; that of a callback then waits for the file that its argument ``until`` names."""

SERVER_VARIABLE = "PLAYER_SERVER"
NOTES_VARIABLE = "PLAYER_NOTES"
GATES_VARIABLE = "PLAYER_GATES"
"""A folder in which the body of a task waits for a file named like its run; not set, it does not wait."""


class KilledError(Exception):
    """The process of the body was killed in it: it has noted no end, and reports nothing."""


class Player:
    """Runs workloads, for any number of threads.

    :param server: URL of an API server with the plugin, without a path
    :param notes: the file that all players append to
    :param gates: see ``GATES_VARIABLE``
    """

    def __init__(self, server: str, notes: Path, gates: Path | None = None) -> None:
        self._client = httpx.Client(base_url=server, timeout=60)
        self._notes = notes
        self._gates = gates

    def play(
        self, payload: str, nonce: str | None, place: str, is_killed: Callable[[], bool] = lambda: False
    ) -> bool:
        """Run one workload.

        :param payload: its JSON, as the executor sent it
        :param nonce: of this execution; None plays a stock worker, which sends no headers
        :param place: which process or pod this is, for the notes
        :param is_killed: asked when the body has done its work
        :returns: False if the claim was refused
        :raises KilledError: the body was killed
        """
        workload = json.loads(payload)
        if "ti" in workload:
            return self._play_task(workload, nonce, place, is_killed)
        return self._play_callback(workload, nonce, place, is_killed)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _play_task(
        self, workload: dict[str, Any], nonce: str | None, place: str, is_killed: Callable[[], bool]
    ) -> bool:
        ti, jwt = workload["ti"], workload["token"]
        token = read_launch_token(jwt)
        worker = Worker(client=self._client, subject_id=ti["id"], jwt=jwt, hostname=place)
        # As the guard does: no headers about a message of a stock executor.
        if nonce is not None and token is not None:
            worker = worker.but(header=token, claimant=nonce)
        answer = worker.run()
        if token is None and answer.status_code == HTTPStatus.NOT_FOUND:
            return False  # the task instance was reset, and has another id
        if not _is_accepted(answer):
            return False
        subject = [ti[key] for key in ("dag_id", "run_id", "task_id", "map_index", "try_number")]
        gate = None if self._gates is None else self._gates / ti["run_id"]
        self._body("task", subject, str(token), place, is_killed, gate)
        worker = worker.but(jwt=answer.headers["Refreshed-API-Token"])
        _is_accepted(worker.report("success"))
        return True

    def _play_callback(
        self, workload: dict[str, Any], nonce: str | None, place: str, is_killed: Callable[[], bool]
    ) -> bool:
        callback, jwt = workload["callback"], workload["token"]
        token = str(read_launch_token(jwt))
        worker = CallbackWorker(
            client=self._client, callback_id=callback["id"], header=token, claimant=nonce, jwt=jwt
        )
        if not _is_accepted(worker.run(hostname=place)):
            return False
        arguments = callback["data"].get("kwargs") or {}
        until = arguments.get("until")
        self._body("callback", [], token, place, is_killed, until and Path(until))
        if error := arguments.get("error"):
            _is_accepted(worker.report("failed", error))
        else:
            _is_accepted(worker.report("success"))
        return True

    def _body(
        self,
        kind: str,
        subject: list[Any],
        token: str,
        place: str,
        is_killed: Callable[[], bool],
        until: Path | None = None,
    ) -> None:
        body = str(uuid.uuid4())
        identity = {"kind": kind, "subject": subject, "token": token, "place": place}
        self._note({"body": body, "event": "began", **identity})
        time.sleep(BODY_SECONDS)
        while until is not None and not until.exists():
            time.sleep(BODY_SECONDS)
        if is_killed():
            raise KilledError
        self._note({"body": body, "event": "ended"})

    def _note(self, note: dict[str, Any]) -> None:
        # One short write in append mode: lines of several processes do not mix.
        with self._notes.open("a", encoding="utf-8") as notes:
            notes.write(json.dumps({**note, "at": time.time()}) + "\n")


def player_of_this_process() -> Player:
    """Return a player as the environment of a worker describes it."""
    gates = os.environ.get(GATES_VARIABLE)
    return Player(
        os.environ[SERVER_VARIABLE], Path(os.environ[NOTES_VARIABLE]), Path(gates) if gates else None
    )


def _is_accepted(answer: Any) -> bool:
    """Whether a call was accepted, or else refused by the fence.

    :raises httpx.HTTPStatusError: it was neither
    """
    if answer.status_code == HTTPStatus.CONFLICT:
        return False
    answer.raise_for_status()
    return True
