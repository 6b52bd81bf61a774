# SPDX-License-Identifier: Apache-2.0
"""Which backend and queue a workload goes to: the user's rules first, then the built-in ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.domain.errors import ConfigurationError
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.workload import WorkloadKind, WorkloadView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

_GLOB_KEYS = ("queue", "dag_id", "task_id", "run_id", "pool", "team", "callback")


class Match(BaseModel):
    """The conditions of a rule; all that are given must hold. Texts are shell globs, case-sensitive."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: WorkloadKind | None = Field(default=None, strict=False)
    queue: str | None = None
    dag_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    pool: str | None = None
    team: str | None = None
    callback: str | None = None
    has_pod_override: bool | None = None
    min_priority: int | None = None

    def holds(self, view: WorkloadView) -> bool:
        """Whether ``view`` meets every condition."""
        if self.kind is not None and self.kind is not view.kind:
            return False
        if self.has_pod_override is not None and self.has_pod_override != view.has_pod_override:
            return False
        if self.min_priority is not None and view.priority < self.min_priority:
            return False
        return all(self._glob_holds(key, view) for key in _GLOB_KEYS)

    def _glob_holds(self, key: str, view: WorkloadView) -> bool:
        pattern: str | None = getattr(self, key)
        if pattern is None:
            return True
        value: str | None = getattr(view, key)
        return value is not None and fnmatchcase(value, pattern)


class Rule(BaseModel):
    """One routing rule of ``[dispatcher] routes``. Without ``queue`` the workload keeps its own."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    match: Match
    backend: BackendName = Field(strict=False)
    queue: str | None = Field(default=None, min_length=1, max_length=256)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a workload goes.

    :param reason: the rule that chose it, as shown in ``route_reason`` of the ledger
    """

    backend: BackendName
    queue: str
    reason: str


def parse_rules(text: str, source: str) -> tuple[Rule, ...]:
    """Read a JSON list of rules.

    :param text: the JSON; empty means no rules
    :param source: where it comes from, for the message
    :raises ConfigurationError: names the rule by its number and the key that is wrong
    """
    if not text.strip():
        return ()
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as exc:
        raise ConfigurationError(f"{source}: not valid JSON ({exc}); write a JSON list of rules") from exc
    if not isinstance(raw, list):
        raise ConfigurationError(f"{source}: must be a JSON list of rules, not a {type(raw).__name__}")
    return tuple(_parse_rule(item, number, source) for number, item in enumerate(raw, start=1))


def _parse_rule(item: object, number: int, source: str) -> Rule:
    try:
        return Rule.model_validate(item)
    except ValidationError as exc:
        problems = "; ".join(
            f"key {'.'.join(str(part) for part in error['loc']) or '(whole rule)'}: {_fault(error)}"
            for error in exc.errors(include_url=False, include_input=False)
        )
        raise ConfigurationError(f"{source}: rule {number}: {problems}") from exc


def _fault(error: ErrorDetails) -> str:
    if error["type"] != "extra_forbidden":
        return error["msg"]
    model = Match if len(error["loc"]) > 1 else Rule
    return f"there is no such key; it may be one of: {', '.join(model.model_fields)}"


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses the route of a workload; pure, so the same workload always gets the same route.

    :param rules: the user's rules, first match wins
    :param kubernetes_queue: tasks of this queue go to Kubernetes
    :param callback_backend: where callbacks go when no rule says otherwise
    :param callback_queue: Celery queue of callbacks
    :param default_queue: Celery queue of workloads that name none
    """

    kubernetes_queue: str
    callback_backend: BackendName
    callback_queue: str
    default_queue: str
    rules: Sequence[Rule] = field(default=())

    def route(self, view: WorkloadView) -> Route:
        """Return where ``view`` goes, and why."""
        own_queue = self._own_queue(view)
        for number, rule in enumerate(self.rules, start=1):
            if rule.match.holds(view):
                return Route(rule.backend, rule.queue or own_queue, f"routes rule {number}")
        return self._built_in(view, own_queue)

    def _own_queue(self, view: WorkloadView) -> str:
        if view.queue:
            return view.queue
        return self.callback_queue if view.kind is WorkloadKind.CALLBACK else self.default_queue

    def _built_in(self, view: WorkloadView, queue: str) -> Route:
        if view.has_pod_override:
            return Route(BackendName.KUBERNETES, queue, "pod override")
        if view.kind is WorkloadKind.TASK and view.queue == self.kubernetes_queue:
            return Route(BackendName.KUBERNETES, queue, "kubernetes_queue")
        if view.kind is WorkloadKind.CALLBACK:
            return Route(self.callback_backend, queue, "callback_backend")
        return Route(BackendName.CELERY, queue, "default")
