# SPDX-License-Identifier: Apache-2.0
"""The one place that reads the dispatcher's configuration."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dispatcher.domain.errors import ConfigurationError
from dispatcher.domain.lifecycle import BackendName
from dispatcher.domain.routing import Router, Rule, parse_rules

E = TypeVar("E", bound=Enum)
N = TypeVar("N", int, float)

SECTION = "dispatcher"
DEFAULT_KUBERNETES_QUEUE = "kubernetes"

LONGEST_DAYS = 365_000
"""A thousand years: of a time that is much longer, no date can be made."""

LONGEST_SECONDS = LONGEST_DAYS * 86_400

MOST_CREATIONS = 1_000
"""Each takes a thread, and API servers turn away more calls than some hundred at once."""

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class ConfigSource(Protocol):
    """What is read from: Airflow's ``conf``, or an executor's team-aware ``self.conf``."""

    def get(self, section: str, key: str, **kwargs: Any) -> str | None:
        """Return a setting as text."""

    def getsection(self, section: str) -> Mapping[str, Any] | None:
        """Return what is set in a section, without the defaults that providers declare."""


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
    :param callback_queued_timeout: seconds a callback may wait for its start, never longer than its token
    :param callback_pod_template_file: template of the pods of callbacks; None means that of tasks
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
    callback_pod_template_file: str | None
    launch_retention_days: int
    task_relaunches: int
    callback_relaunches: int
    callback_queued_timeout: float
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


def load(conf: ConfigSource, shared: ConfigSource | None = None) -> Settings:
    """Read and check the settings.

    :param conf: Airflow's configuration, team-aware where an executor passes its own
    :param shared: the configuration of the whole deployment, for what teams share: a team-aware one does not
        fall back to it. Airflow's own where it is not given
    :raises ConfigurationError: names the key that is wrong and says what it may be
    """
    shared = shared or _airflow_conf()
    queued_timeout = _seconds(shared, "scheduler", "task_queued_timeout", 600.0, minimum=1)
    callback_timeout = _seconds(conf, SECTION, "callback_queued_timeout", 0.0, minimum=0) or queued_timeout
    ttl = _seconds(conf, SECTION, "workload_token_ttl", 0.0, minimum=0)
    ttl = ttl or 2 * max(queued_timeout, callback_timeout)
    return Settings(
        kubernetes_queue=_kubernetes_queue(conf),
        callback_queue=_text(conf, "callback_queue", "callbacks"),
        callback_backend=_choice(conf, "callback_backend", BackendName, BackendName.CELERY),
        default_queue=shared.get("operators", "default_queue", fallback="default") or "default",
        rules=_rules(conf),
        fence=load_fence_mode(shared),
        workload_token_ttl=ttl,
        pod_creation_concurrency=_count(
            conf, "pod_creation_concurrency", 32, minimum=1, maximum=MOST_CREATIONS
        ),
        workload_delivery=_choice(conf, "workload_delivery", WorkloadDelivery, WorkloadDelivery.ARGS),
        callback_pod_template_file=_text(conf, "callback_pod_template_file", "") or None,
        launch_retention_days=_count(shared, "launch_retention_days", 30, minimum=1, maximum=LONGEST_DAYS),
        task_relaunches=_count(conf, "task_relaunches", 3, minimum=0),
        callback_relaunches=_count(conf, "callback_relaunches", 1, minimum=0),
        callback_queued_timeout=min(callback_timeout, ttl),
        heartbeat_timeout=_seconds(shared, "scheduler", "task_instance_heartbeat_timeout", 300.0, minimum=1),
        deployment=_deployment(shared),
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
    inherited = conf.get("celery_kubernetes_executor", "kubernetes_queue", fallback=None)
    if own != DEFAULT_KUBERNETES_QUEUE or not inherited:
        return own
    is_set = "kubernetes_queue" in (conf.getsection(SECTION) or {})
    return own if is_set else inherited


def _choice(conf: ConfigSource, key: str, choices: type[E], default: E) -> E:
    value = _text(conf, key, str(default.value))
    try:
        return choices(value)
    except ValueError as exc:
        allowed = ", ".join(str(choice.value) for choice in choices)
        raise ConfigurationError(f"[{SECTION}] {key} is {value!r}; it must be one of: {allowed}") from exc


def _seconds(conf: ConfigSource, section: str, key: str, default: float, *, minimum: float) -> float:
    value = conf.get(section, key, fallback=None) or str(default)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigurationError(f"[{section}] {key} is {value!r}; it must be a number of seconds")
    return _at_most(LONGEST_SECONDS, _at_least(minimum, number, section, key), section, key)


def _count(conf: ConfigSource, key: str, default: int, *, minimum: int, maximum: int | None = None) -> int:
    value = conf.get(SECTION, key, fallback=None) or str(default)
    try:
        number = int(value)
    except ValueError as exc:
        raise ConfigurationError(f"[{SECTION}] {key} is {value!r}; it must be a whole number") from exc
    number = _at_least(minimum, number, SECTION, key)
    return number if maximum is None else _at_most(maximum, number, SECTION, key)


def _at_least(minimum: N, number: N, section: str, key: str) -> N:
    if number < minimum:
        raise ConfigurationError(f"[{section}] {key} is {number:g}; it must be at least {minimum:g}")
    return number


def _at_most(maximum: N, number: N, section: str, key: str) -> N:
    if number > maximum:
        raise ConfigurationError(f"[{section}] {key} is {number}; it must be at most {maximum}")
    return number


def _rules(conf: ConfigSource) -> tuple[Rule, ...]:
    inline = _text(conf, "routes", "")
    path = _text(conf, "routes_file", "")
    if inline and path:
        raise ConfigurationError(f"[{SECTION}] routes and routes_file are both set; keep one of them")
    if not path:
        return parse_rules(inline, f"[{SECTION}] routes")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"[{SECTION}] routes_file {path}: cannot be read ({exc})") from exc
    return parse_rules(text, f"[{SECTION}] routes_file {path}")


def _deployment(conf: ConfigSource) -> str:
    chosen = _text(conf, "deployment", "")
    if not chosen:
        address = conf.get("database", "sql_alchemy_conn", fallback="") or ""
        return hashlib.sha256(_without_credentials(address).encode()).hexdigest()[:10]
    if not _LABEL_VALUE.fullmatch(chosen):
        raise ConfigurationError(
            f"[{SECTION}] deployment is {chosen!r}; as the value of a pod label it must be 1 to 63 letters, "
            "digits, '-', '_' or '.', and begin and end with a letter or digit"
        )
    return chosen


def _without_credentials(address: str) -> str:
    """Return the address of a database without what may change while it stays the same database."""
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address).difference_update_query(("user", "password"))
    except ArgumentError:
        return ""
    bare = URL.create(
        url.get_backend_name(), host=url.host, port=url.port, database=url.database, query=url.query
    )
    return bare.render_as_string()


def _airflow_conf() -> ConfigSource:
    from airflow.configuration import conf

    return conf
