# SPDX-License-Identifier: Apache-2.0
"""What the fence knows about the request that is being handled: the call, and who presents what.

Light on purpose: the plugin imports it in every Airflow process.
"""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4
from weakref import WeakSet

from dispatcher.domain.launch import claimant_from_nonce, claimant_from_process
from dispatcher.domain.wire import LAUNCH_CLAIMANT_HEADER, LAUNCH_TOKEN_CLAIM, LAUNCH_TOKEN_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from sqlalchemy.orm import Session, SessionTransaction
    from starlette.datastructures import Headers

REFRESHED_TOKEN_HEADER = "Refreshed-API-Token"
"""Response header in which Airflow answers a claim with the token to go on with."""

BODY_LIMIT = 65_536
"""Bytes of a claim's body that are kept; it names a host, a user and a process."""

CLAIMANT_LIMIT = 500
"""Longest claimant, in characters; the ledger has room for a little more."""

_TOKEN = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NONCE = re.compile(r"[!-~]{1,128}")

# `$` and not fullmatch: Starlette compiles its own paths so, and a line feed at the end must not get past
# the fence while it still reaches the route.
_PATH = re.compile(
    r"^/execution/(?:task-instances/(?P<id>[^/]+)/"
    r"(?P<call>run|state|heartbeat|rendered-map-index|skip-downstream|rtif)"
    r"|callbacks/(?P<callback_id>[^/]+)/run)$"
)


class Call(StrEnum):
    """The fenced calls (rule 10)."""

    RUN = "run"
    STATE = "state"
    HEARTBEAT = "heartbeat"
    RENDERED_MAP_INDEX = "rendered-map-index"
    SKIP_DOWNSTREAM = "skip-downstream"
    RTIF = "rtif"
    RUN_CALLBACK = "run-callback"
    """Airflow's own start of a callback, which 3.3 does not have."""

    @property
    def method(self) -> str:
        """The HTTP method of the route."""
        return "PUT" if self in (Call.HEARTBEAT, Call.RTIF) else "PATCH"

    @property
    def is_claim(self) -> bool:
        """Whether it claims a launch."""
        return self in (Call.RUN, Call.RUN_CALLBACK)

    @property
    def must_fire(self) -> bool:
        """Whether the route changes the task instance, so that it must not commit unjudged (rule 10)."""
        return self is not Call.RTIF

    @property
    def reads_first(self) -> bool:
        """Whether the route looks for the task instance by a SELECT without a lock."""
        return self in (Call.SKIP_DOWNSTREAM, Call.RTIF)


class PresentationError(ValueError):
    """What the request presents is malformed or contradicts itself; the message is for its sender."""


@dataclass(frozen=True, slots=True)
class Presentation:
    """What a request presents of its launch.

    :param token: the launch token, as sent; None if there is none
    :param by_header: it came in a header, and not by the JWT alone
    :param nonce: the claimant's own nonce, if it sent one
    """

    token: str | None
    by_header: bool
    nonce: str | None


@dataclass(slots=True, eq=False)
class FencedRequest:
    """The state of one fenced request.

    It is mutable and shared: routes run in threads with a copy of the context, so what they learn travels
    through the object and not through the context variable (rule 10).

    :param call: which call it is
    :param subject_id: the UUID of its path
    :param presented: what it presents
    :param required: whether ``[dispatcher] fence`` is ``required``
    :param body: the beginning of its body, for a claim
    :param fired: whether the session hook saw the route touch the row of its path
    :param judged_in: the transaction in which the path's row was locked and judged
    :param granted: the execution token with which the fence itself answers a repeated start of a callback
    :param begun: the sessions that talked to the database during the request
    """

    call: Call
    subject_id: UUID
    presented: Presentation
    required: bool
    body: bytearray = field(default_factory=bytearray)
    fired: bool = False
    judged_in: SessionTransaction | None = None
    granted: str | None = None
    begun: WeakSet[Session] = field(default_factory=WeakSet)

    @property
    def row_is_locked(self) -> bool:
        """Whether a transaction that holds the path's row, judged, is still open."""
        return self.judged_in is not None and self.judged_in.is_active

    def payload(self) -> Mapping[str, Any]:
        """Return the body of a claim as far as it is known; Airflow's own model has validated it by then."""
        try:
            payload = json.loads(bytes(self.body))
        except ValueError:
            return {}
        return payload if isinstance(payload, dict) else {}

    def claimant(self) -> str:
        """Name the claimant of ``/run``: by its nonce or, without one, by its process (rule 7).

        The start of a callback does not tell its process: without a nonce each call is a claimant of its own.

        :raises PresentationError: neither is there, or the name is too long to be kept
        """
        if self.presented.nonce is not None:
            return claimant_from_nonce(self.presented.nonce)
        if self.call is Call.RUN_CALLBACK:
            return claimant_from_process("", str(uuid4()), 0)
        payload = self.payload()
        try:
            name = claimant_from_process(payload["hostname"], payload["unixname"], payload["pid"])
        except KeyError as exc:
            raise PresentationError(f"the body does not tell the {exc.args[0]} of the claimant") from exc
        if len(name) > CLAIMANT_LIMIT:
            raise PresentationError("the names of host and user are too long for a claimant")
        return name


current_request: ContextVar[FencedRequest | None] = ContextVar("dispatcher_fenced_request", default=None)
"""The fenced request that the running code belongs to; None everywhere else."""


def find_call(scope: MutableMapping[str, Any]) -> tuple[Call, UUID] | None:
    """Recognise a fenced call by method and path, also behind a root path.

    :param scope: the ASGI scope of an HTTP request
    :returns: the call and the UUID of its path; None for anything else
    """
    match = _PATH.match(_path_below_root(scope))
    if match is None:
        return None
    call = Call(match["call"] or Call.RUN_CALLBACK)
    if scope["method"] != call.method:
        return None
    try:
        return call, UUID(match["id"] or match["callback_id"])
    except ValueError:
        # No route takes such a path: Airflow answers that itself.
        return None


def _path_below_root(scope: MutableMapping[str, Any]) -> str:
    path: str = scope["path"]
    root_path: str = scope.get("root_path", "")
    # As Starlette's router does: a proxy may or may not have stripped the prefix.
    if root_path and path.startswith(f"{root_path}/"):
        return path.removeprefix(root_path)
    return path


def read_presentation(headers: Headers, claims: Mapping[str, Any]) -> Presentation:
    """Read what a request presents of its launch.

    :param headers: the request's headers
    :param claims: the claims of its JWT
    :raises PresentationError: a token is malformed, header and JWT differ, or the nonce is malformed
    """
    by_header = _single(headers, LAUNCH_TOKEN_HEADER)
    by_claim = claims.get(LAUNCH_TOKEN_CLAIM)
    for token, source in ((by_header, "header"), (by_claim, "JWT")):
        if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise PresentationError(f"the launch token in the {source} is not a UUID")
    if by_header is not None and by_claim is not None and by_header != by_claim:
        raise PresentationError("the launch token in the header is not the one in the JWT")
    nonce = _single(headers, LAUNCH_CLAIMANT_HEADER)
    if nonce is not None and not _NONCE.fullmatch(nonce):
        raise PresentationError("the claimant must be 1 to 128 visible ASCII characters")
    # The text stays as it was sent: tokens are compared as text.
    return Presentation(by_claim if by_header is None else by_header, by_header is not None, nonce)


def _single(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise PresentationError(f"the header {name} was sent more than once")
    return values[0] if values else None
