# SPDX-License-Identifier: Apache-2.0
"""The fenced calls, made as workers make them, and the rows that they are about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID, uuid4

from dispatcher.domain.lifecycle import LaunchState
from dispatcher.domain.wire import LAUNCH_CLAIMANT_HEADER, LAUNCH_TOKEN_HEADER
from tests.support.launches import add_launch_of
from tests.support.rows import make_task_instance, utcnow
from tests.support.tokens import bearer, sign_token

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

    from dispatcher.domain.launch import Launch

HOSTNAME = "worker"
UNIXNAME = "airflow"
PID = 7


class HttpClient(Protocol):
    """What ``TestClient`` and ``httpx.Client`` have in common."""

    def request(self, method: str, url: str, **kwargs: Any) -> Any:
        """Send a request and return the response."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One execution that talks about one task instance.

    :param client: how it reaches the API server; paths begin with ``/execution``.
    :param subject_id: UUID of the task instance that it talks about.
    :param header: the launch token that it presents in the header.
    :param claimant: the nonce that it presents.
    :param claim: the launch token in its JWT.
    :param jwt: a JWT to present instead of one signed for the subject.
    """

    client: HttpClient
    subject_id: UUID | str
    header: str | None = None
    claimant: str | None = None
    claim: str | None = None
    jwt: str | None = None
    hostname: str = HOSTNAME
    pid: int = PID

    def but(self, **changes: Any) -> Worker:
        """Return the same execution with some things changed."""
        return replace(self, **changes)

    def run(self, **body: Any) -> Any:
        """Claim: ``/run`` with the workload JWT."""
        start = {"state": "running", "unixname": UNIXNAME, "start_date": utcnow().isoformat()}
        return self.call("PATCH", "run", "workload", {**self._process(), **start, **body})

    def heartbeat(self) -> Any:
        """Send a task heartbeat."""
        return self.call("PUT", "heartbeat", "execution", self._process())

    def report(self, state: str = "success", **body: Any) -> Any:
        """Report a terminal state, or another one with what belongs to it in ``body``."""
        body = {"state": state, "end_date": utcnow().isoformat(), **body}
        return self.call("PATCH", "state", "execution", body)

    def rtif(self) -> Any:
        """Store rendered fields."""
        return self.call("PUT", "rtif", "execution", {"field": "value"})

    def rendered_map_index(self, label: str = "label") -> Any:
        """Store the label of a mapped task instance."""
        return self.call("PATCH", "rendered-map-index", "execution", label)

    def skip_downstream(self, *task_ids: str) -> Any:
        """Skip siblings, as a branching task does."""
        return self.call("PATCH", "skip-downstream", "execution", {"tasks": list(task_ids)})

    def call(self, method: str, call: str, scope: Any, body: Any) -> Any:
        """Send one call and return the response."""
        headers = bearer(self.jwt or sign_token(self.subject_id, scope, self.claim))
        if self.header is not None:
            headers[LAUNCH_TOKEN_HEADER] = self.header
        if self.claimant is not None:
            headers[LAUNCH_CLAIMANT_HEADER] = self.claimant
        url = f"/execution/task-instances/{self.subject_id}/{call}"
        return self.client.request(method, url, json=body, headers=headers)

    def _process(self) -> dict[str, Any]:
        return {"hostname": self.hostname, "pid": self.pid}


LATER_CALLS = ("heartbeat", "report", "rtif", "rendered_map_index", "skip_downstream")
"""The methods of ``Worker`` for the fenced calls after the claim."""


def guarded(client: HttpClient, launch: Launch) -> Worker:
    """Return an execution of our worker: headers, and the claim in the JWT."""
    return Worker(
        client=client,
        subject_id=launch.subject_id,
        header=launch.token,
        claimant=uuid4().hex,
        claim=launch.token,
    )


def stock(client: HttpClient, launch: Launch) -> Worker:
    """Return an execution of a stock worker: the token travels in the JWT alone."""
    return Worker(client=client, subject_id=launch.subject_id, claim=launch.token)


def queued_launch(session: Session, **columns: Any) -> Launch:
    """Commit a QUEUED task instance and its launch, as the scheduler leaves them, and return the launch."""
    instance = make_task_instance(session, **columns)
    launch = add_launch_of(session, instance, state=LaunchState.SUBMITTED)
    session.commit()
    return launch


def requeue(session: Session, instance_id: UUID | str) -> Launch:
    """Queue a task instance anew under another token, and issue the launch, in one transaction.

    What the scheduler does after a deferral, a reschedule or stuck handling: the UUID stays.
    """
    from airflow.models.taskinstance import TaskInstance

    instance = session.get(TaskInstance, UUID(str(instance_id)), populate_existing=True, with_for_update=True)
    instance.state = "queued"
    instance.external_executor_id = str(uuid4())
    instance.queued_dttm = utcnow()
    session.flush()
    launch = add_launch_of(session, instance)
    session.commit()
    return launch


def task_instance(session: Session, instance_id: UUID | str) -> TaskInstance:
    """Read a task instance as it is in the database now."""
    from airflow.models.taskinstance import TaskInstance

    session.rollback()
    return session.get(TaskInstance, UUID(str(instance_id)), populate_existing=True)


def launch_row(session: Session, token: str) -> Launch:
    """Read a launch as it is in the ledger now."""
    from dispatcher.ledger import store

    session.rollback()
    found = store.by_token(session.connection(), token)
    session.rollback()
    assert found is not None
    return found


def reason(response: Any) -> str | None:
    """Return ``detail.reason`` of an error answer, or None where it has none."""
    detail = response.json().get("detail")
    return detail.get("reason") if isinstance(detail, dict) else None


def assert_refused(response: Any, expected: str, status: int = 409) -> None:
    """Check that the answer is a refusal of the fence, in the contract's shape, and tells no token."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"detail"}
    assert body["detail"].keys() == {"reason", "message"}
    assert body["detail"]["reason"] == expected
