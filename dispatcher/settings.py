# SPDX-License-Identifier: Apache-2.0
"""The one place that reads the dispatcher's configuration."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dispatcher.domain.errors import ConfigurationError
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.routing import Router, Rule, parse_rules

E = TypeVar("E", bound=Enum)

SECTION = "dispatcher"
DEFAULT_KUBERNETES_QUEUE = "kubernetes"


class ConfigSource(Protocol):
    """What is read from: Airflow's ``conf``, or an executor's team-aware ``self.conf``."""

    def get(self, section: str, key: str, **kwargs: Any) -> str | None:
        """Return a setting as text."""


class FenceMode(StrEnum):
    """What the fence does with calls that bring no token (rule 11)."""

    PRESENTED = "presented"
    REQUIRED = "required"


class WorkloadDelivery(StrEnum):
    """How a pod gets its workload."""

    ARGS = "args"
    SECRET = "secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The ``[dispatcher]`` section, checked.

    :param workload_token_ttl: seconds a sent workload may wait before it can no longer start
    :param heartbeat_timeout: seconds a running task's heartbeat may stand still, from ``[scheduler]``
    :param deployment: tells deployments in one namespace apart
    """

    kubernetes_queue: str
    callback_queue: str
    callback_backend: BackendName
    default_queue: str
    rules: tuple[Rule, ...]
    fence: FenceMode
    workload_token_ttl: float
    pod_creation_concurrency: int
    workload_delivery: WorkloadDelivery
    launch_retention_days: int
    callback_relaunches: int
    heartbeat_timeout: float
    deployment: str

    @property
    def router(self) -> Router:
        """The router that these settings describe."""
        return Router(
            kubernetes_queue=self.kubernetes_queue,
            callback_backend=self.callback_backend,
            callback_queue=self.callback_queue,
            default_queue=self.default_queue,
            rules=self.rules,
        )


def load(conf: ConfigSource) -> Settings:
    """Read and check the settings.

    :param conf: Airflow's configuration, team-aware where an executor passes its own
    :raises ConfigurationError: names the key that is wrong and says what it may be
    """
    queued_timeout = _number(conf, "scheduler", "task_queued_timeout", 600.0, minimum=1)
    ttl = _number(conf, SECTION, "workload_token_ttl", 0.0, minimum=0)
    return Settings(
        kubernetes_queue=_kubernetes_queue(conf),
        callback_queue=_text(conf, "callback_queue", "callbacks"),
        callback_backend=_choice(conf, "callback_backend", BackendName, BackendName.CELERY),
        default_queue=conf.get("operators", "default_queue", fallback="default") or "default",
        rules=_rules(conf),
        fence=load_fence_mode(conf),
        workload_token_ttl=ttl or 2 * queued_timeout,
        pod_creation_concurrency=int(_number(conf, SECTION, "pod_creation_concurrency", 32, minimum=1)),
        workload_delivery=_choice(conf, "workload_delivery", WorkloadDelivery, WorkloadDelivery.ARGS),
        launch_retention_days=int(_number(conf, SECTION, "launch_retention_days", 30, minimum=1)),
        callback_relaunches=int(_number(conf, SECTION, "callback_relaunches", 1, minimum=0)),
        heartbeat_timeout=_number(conf, "scheduler", "task_instance_heartbeat_timeout", 300.0, minimum=1),
        deployment=_deployment(conf),
    )


def load_fence_mode(conf: ConfigSource) -> FenceMode:
    """Read ``[dispatcher] fence`` alone: all that the API server needs.

    :param conf: Airflow's configuration
    :raises ConfigurationError: it is neither ``presented`` nor ``required``
    """
    return _choice(conf, "fence", FenceMode, FenceMode.PRESENTED)


def _text(conf: ConfigSource, key: str, default: str) -> str:
    value = conf.get(SECTION, key, fallback=default)
    return value.strip() if value and value.strip() else default


def _kubernetes_queue(conf: ConfigSource) -> str:
    own = _text(conf, "kubernetes_queue", DEFAULT_KUBERNETES_QUEUE)
    if own != DEFAULT_KUBERNETES_QUEUE:
        return own
    return conf.get("celery_kubernetes_executor", "kubernetes_queue", fallback=own) or own


def _choice(conf: ConfigSource, key: str, choices: type[E], default: E) -> E:
    value = _text(conf, key, str(default.value))
    try:
        return choices(value)
    except ValueError as exc:
        allowed = ", ".join(str(choice.value) for choice in choices)
        raise ConfigurationError(f"[{SECTION}] {key} is {value!r}; it must be one of: {allowed}") from exc


def _number(conf: ConfigSource, section: str, key: str, default: float, *, minimum: float) -> float:
    value = conf.get(section, key, fallback=str(default))
    try:
        number = float(value) if value not in (None, "") else float(default)
    except ValueError as exc:
        raise ConfigurationError(f"[{section}] {key} is {value!r}; it must be a number") from exc
    if number < minimum:
        raise ConfigurationError(f"[{section}] {key} is {value}; it must be at least {minimum:g}")
    return number


def _rules(conf: ConfigSource) -> tuple[Rule, ...]:
    inline = conf.get(SECTION, "routes", fallback=None)
    path = conf.get(SECTION, "routes_file", fallback=None)
    if inline and inline.strip():
        if path:
            raise ConfigurationError(f"[{SECTION}] routes and routes_file are both set; keep one of them")
        return parse_rules(inline, f"[{SECTION}] routes")
    if not path:
        return ()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"[{SECTION}] routes_file {path}: cannot be read ({exc})") from exc
    return parse_rules(text, f"[{SECTION}] routes_file {path}")


def _deployment(conf: ConfigSource) -> str:
    chosen = conf.get(SECTION, "deployment", fallback=None)
    if chosen:
        return chosen
    address = conf.get("database", "sql_alchemy_conn", fallback="") or ""
    return hashlib.sha256(_without_credentials(address).encode()).hexdigest()[:10]


def _without_credentials(address: str) -> str:
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    return f"{scheme}://{rest.rpartition('@')[2]}"
