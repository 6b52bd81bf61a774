# SPDX-License-Identifier: Apache-2.0
"""What the tour asks of Airflow's public REST API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from dispatcher.local.errors import LocalModeError

if TYPE_CHECKING:
    from dispatcher.local.login import Login

ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Task:
    """A task instance, as the REST API shows it.

    :param id: its UUID
    :param state: Airflow's state; None is "no state"
    """

    id: str
    task_id: str
    map_index: int
    state: str | None

    def __str__(self) -> str:
        """Name the task instance."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class RestApi:
    """A client of the public REST API, logged in.

    :param url: address of the API server, without a slash at the end
    :param login: user name and password
    :raises LocalModeError: on every call that is not answered with success
    """

    def __init__(self, url: str, login: Login) -> None:
        self._client = httpx.Client(base_url=url, timeout=ANSWER_SECONDS)
        answer = self._call("POST", "/auth/token", {"username": login.user, "password": login.password})
        self._client.headers["Authorization"] = f"Bearer {answer['access_token']}"

    def knows(self, dag_id: str) -> bool:
        """Say whether a DAG has been parsed."""
        return bool(self._call("GET", f"/api/v2/dags?dag_id_pattern={dag_id}")["dags"])

    def import_errors(self) -> list[str]:
        """Return why DAG files could not be parsed, one entry per file."""
        return [error["stack_trace"] for error in self._call("GET", "/api/v2/importErrors")["import_errors"]]

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run a DAG."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str, run_id: str) -> None:
        """Start a run.

        :param run_id: a new id
        """
        body = {"logical_date": None, "dag_run_id": run_id}
        self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run."""
        return str(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> list[Task]:
        """Return the task instances of a run."""
        answer = self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return [
            Task(id=one["id"], task_id=one["task_id"], map_index=one["map_index"], state=one["state"])
            for one in answer["task_instances"]
        ]

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, json=body)
            answer.raise_for_status()
        except httpx.HTTPError as exc:
            raise LocalModeError(f"the REST API did not do {method} {path}: {exc}") from exc
        return dict(answer.json())
