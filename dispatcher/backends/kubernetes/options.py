# SPDX-License-Identifier: Apache-2.0
"""What ``[kubernetes_executor]`` says, as far as this backend needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dispatcher.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SECTION = "kubernetes_executor"

_CALL_ARGUMENTS = frozenset(
    {
        "_request_timeout",
        "_request_auth",
        "_headers",
        "_content_type",
        "_preload_content",
        "_return_http_data_only",
        "pretty",
    }
)
"""What every call of the client takes."""

Scope = str | None
"""A namespace, or None for the whole cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Where and how pods are made.

    :param namespace: where pods go that ask for no other
    :param scopes: what is watched; only there may pods be created
    :param image: image of the container ``base``; None leaves it to the template
    :param pod_template_file: path of the base template; None means the built-in one
    :param executors: ``[core] executor`` of the deployment, for pods to know; None leaves it to the template
    :param delete_pods: whether ended pods are deleted
    :param delete_failed_pods: whether that holds for failed ones too
    :param delete_options: arguments of ``V1DeleteOptions``
    :param fatal_reasons: of waiting containers: a pod that shows one is given up at once
    :param request_args: arguments of every call of the client
    :param publish_retries: how often a creation that failed for now is tried again; None for always
    :param log_lines: how many of a running pod's last lines are shown
    """

    namespace: str
    scopes: tuple[Scope, ...]
    image: str | None = None
    pod_template_file: str | None = None
    executors: str | None = None
    delete_pods: bool = True
    delete_failed_pods: bool = False
    delete_options: Mapping[str, Any] = field(default_factory=dict)
    fatal_reasons: frozenset[str] = frozenset()
    request_args: Mapping[str, Any] = field(default_factory=dict)
    publish_retries: int | None = None
    log_lines: int = 100

    def allows(self, namespace: str) -> bool:
        """Whether pods may go to ``namespace``: they would not be watched elsewhere."""
        return None in self.scopes or namespace in self.scopes

    def scope_of(self, namespace: str) -> Scope:
        """Return the scope that shows the pods of ``namespace``."""
        return None if None in self.scopes else namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """How patient a watcher is; all in seconds.

    :param watch: when the server ends a watch, to be taken up again
    :param silence: without a byte, not even a bookmark, after which a connection is taken for dead
    :param connect: connecting
    :param relist: between two lists
    :param shortest_round: no two watches are opened faster, whatever the server does
    :param first_pause: after a failure; doubled each time
    :param longest_pause: the longest of these
    """

    watch: int = 60
    silence: float = 70.0
    connect: float = 10.0
    relist: float = 300.0
    shortest_round: float = 1.0
    first_pause: float = 0.5
    longest_pause: float = 30.0


def load_options(conf: Any) -> ClusterOptions:
    """Read the options through the Kubernetes provider.

    :param conf: Airflow's configuration, team-aware where an executor passes its own
    :raises ConfigurationError: a value cannot be used
    """
    from airflow.configuration import conf as deployment_conf
    from airflow.exceptions import AirflowConfigException
    from airflow.providers.cncf.kubernetes.kube_config import KubeConfig

    try:
        config = KubeConfig(executor_conf=conf)
        publish_retries = _publish_retries(conf)
        log_lines = conf.getint(SECTION, "running_pod_log_lines", fallback=100)
        _check_delete_options(config.delete_option_kwargs)
        _check_request_args(config.kube_client_request_args)
    except (AirflowConfigException, ValueError) as exc:
        raise ConfigurationError(f"[{SECTION}] cannot be used: {exc}") from exc
    return ClusterOptions(
        namespace=config.executor_namespace,
        scopes=_scopes(config),
        image=config.kube_image,
        pod_template_file=config.pod_template_file or None,
        # Not a team's own: DAGs are checked against the executors of the whole deployment.
        executors=deployment_conf.get("core", "executor"),
        delete_pods=config.delete_worker_pods,
        delete_failed_pods=config.delete_worker_pods_on_failure,
        delete_options=config.delete_option_kwargs,
        fatal_reasons=frozenset(config.worker_pod_pending_fatal_container_state_reasons),
        request_args=config.kube_client_request_args,
        publish_retries=publish_retries,
        log_lines=max(1, log_lines),
    )


def _check_delete_options(arguments: Mapping[str, Any]) -> None:
    """Refuse what would keep each pod from being deleted later."""
    from kubernetes.client import V1DeleteOptions

    _check_names("delete_option_kwargs", arguments, set(V1DeleteOptions.openapi_types))
    grace = arguments.get("grace_period_seconds")
    if grace is not None and (type(grace) is not int or grace < 0):
        raise ValueError(
            f"delete_option_kwargs: grace_period_seconds is {grace!r}; it must be a whole number of seconds"
        )


def _check_request_args(arguments: Mapping[str, Any]) -> None:
    """Refuse what no call takes, and a time-out that the client would pass over: a call might never end."""
    _check_names("kube_client_request_args", arguments, _CALL_ARGUMENTS)
    timeout = arguments.get("_request_timeout", 1)
    parts = timeout if isinstance(timeout, tuple) and len(timeout) == 2 else (timeout,)  # noqa: PLR2004
    if not all(type(part) in (int, float) and part > 0 for part in parts):
        raise ValueError(
            f"kube_client_request_args: _request_timeout is {timeout!r}; it must be a number of seconds, or "
            "two of them, for connecting and for reading"
        )


def _check_names(key: str, arguments: Mapping[str, Any], known: Collection[str]) -> None:
    if unknown := sorted(set(arguments) - set(known)):
        allowed = ", ".join(sorted(known))
        raise ValueError(f"{key} has {', '.join(unknown)}; it may have: {allowed}")


def _publish_retries(conf: Any) -> int | None:
    """Return the stock executor's bound where it is set; its default, no retry at all, is not taken over."""
    if "task_publish_max_retries" not in (conf.getsection(SECTION) or {}):
        return None
    retries: int = conf.getint(SECTION, "task_publish_max_retries")
    return None if retries < 0 else retries


def _scopes(config: Any) -> tuple[Scope, ...]:
    if not config.multi_namespace_mode:
        return (config.executor_namespace,)
    listed = [name.strip() for name in config.multi_namespace_mode_namespace_list or () if name.strip()]
    if not listed:
        return (None,)
    return tuple(dict.fromkeys(listed))
