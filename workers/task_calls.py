# SPDX-License-Identifier: Apache-2.0
"""What the API server answered on the calls that decide how the run of a task ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from workers.api import answer_reason, refusal_reason
from workers.compat import acknowledges_stop

if TYPE_CHECKING:
    from collections.abc import Mapping

_STOPS = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE})
"""Answers to a heartbeat on which Airflow's supervisor ends the task."""


@dataclass(slots=True)
class TaskCalls:
    """Notes the answers to ``/run``, ``/heartbeat`` and ``/state`` of one task instance.

    Airflow's supervisor keeps some of them to itself: it ends normally after a refused heartbeat, and also
    when the report of a success could not be delivered. The guard must tell these apart (rule 12).

    :param task_instance_id: UUID of the task instance
    """

    task_instance_id: str
    claimed: bool = False
    """Whether ``/run`` was accepted."""
    reported: bool = False
    """Whether the last report of a state was accepted."""
    stop_reason: str | None = None
    """Why the server ordered a stop after the claim: by a heartbeat's answer, or by refusing the report."""

    def note(self, response: Any) -> None:
        """Take note of one response; calls about anything else are passed over.

        :param response: a response of Airflow's client, as its event hooks see it
        """
        prefix, _, call = response.request.url.path.rpartition("/")
        if not prefix.endswith(f"/task-instances/{self.task_instance_id}"):
            return
        if call == "run":
            self.claimed = response.is_success
        elif call == "heartbeat" and response.status_code in _STOPS:
            response.read()
            self.stop_reason = answer_reason(response) or HTTPStatus(response.status_code).name.lower()
        elif call == "state":
            self._note_report(response)

    def _note_report(self, response: Any) -> None:
        if acknowledges_stop(_body_of(response.request)):
            return
        self.reported = response.is_success
        if not response.is_success:
            response.read()
            self.stop_reason = refusal_reason(response) or self.stop_reason


def _body_of(request: Any) -> Mapping[str, Any]:
    try:
        body = json.loads(request.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
