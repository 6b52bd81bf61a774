# SPDX-License-Identifier: Apache-2.0
"""The calls about callbacks, made as workers make them, and the rows that they are about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from dispatcher.domain.lifecycle import LaunchKind, LaunchState
from dispatcher.domain.wire import LAUNCH_CLAIMANT_HEADER, LAUNCH_TOKEN_HEADER
from tests.support.launches import add_launch
from tests.support.rows import make_callback
from tests.support.tokens import bearer, sign_token

if TYPE_CHECKING:
    from airflow.models.callback import Callback
    from sqlalchemy.orm import Session

    from dispatcher.domain.launch import Launch
    from tests.support.fence_calls import HttpClient


@dataclass(frozen=True, kw_only=True)
class CallbackWorker:
    """One execution of a launch of a callback; the parameters are those of ``Worker``."""

    client: HttpClient
    callback_id: UUID | str
    header: str | None = None
    claimant: str | None = None
    claim: str | None = None
    scope: Any = "workload"
    jwt: str | None = None

    def but(self, **changes: Any) -> CallbackWorker:
        """Return the same execution with some things changed."""
        return replace(self, **changes)

    def run(self, **body: Any) -> Any:
        """Claim the callback."""
        return self.call("run", {"hostname": "worker", "pid": 7, **body})

    def start(self) -> Any:
        """Claim the callback at Airflow's own endpoint, which 3.3 does not have."""
        return self._send(f"/execution/callbacks/{self.callback_id}/run", None)

    def report(self, state: str = "success", output: str | None = None, **body: Any) -> Any:
        """Report how it ended."""
        return self.call("state", {"state": state, "output": output, **body})

    def call(self, call: str, body: Any) -> Any:
        """Send one call to the dispatcher's endpoints and return the response."""
        return self._send(f"/dispatcher/callbacks/{self.callback_id}/{call}", body)

    def _send(self, url: str, body: Any) -> Any:
        headers = bearer(self.jwt or sign_token(self.callback_id, self.scope, self.claim))
        if self.header is not None:
            headers[LAUNCH_TOKEN_HEADER] = self.header
        if self.claimant is not None:
            headers[LAUNCH_CLAIMANT_HEADER] = self.claimant
        return self.client.request("PATCH", url, json=body, headers=headers)


def callback_worker(client: HttpClient, launch: Launch) -> CallbackWorker:
    """Return an execution of our worker."""
    return CallbackWorker(
        client=client,
        callback_id=launch.subject_id,
        header=launch.token,
        claimant=uuid4().hex,
        claim=launch.token,
    )


def queued_callback_launch(session: Session, callback: Callback | None = None, **columns: Any) -> Launch:
    """Commit a QUEUED callback, or take the one given, and a launch of it; return the launch."""
    callback = callback or make_callback(session, state="queued")
    values = {"kind": LaunchKind.CALLBACK, "subject_id": str(callback.id), "state": LaunchState.SUBMITTED}
    launch = add_launch(session, **values | columns)
    session.commit()
    return launch


def callback_row(session: Session, callback_id: UUID | str) -> Callback:
    """Read a callback as it is in the database now."""
    from airflow.models.callback import Callback

    session.rollback()
    return session.get(Callback, UUID(str(callback_id)), populate_existing=True)
