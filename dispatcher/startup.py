# SPDX-License-Identifier: Apache-2.0
"""What the executor looks at when it starts: each finding is one line that says what to do."""

from __future__ import annotations

import json
import logging
import threading
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from airflow.exceptions import AirflowConfigException
from airflow.executors.base_executor import get_execution_api_server_url
from airflow.executors.executor_loader import ExecutorLoader
from airflow.utils.session import create_session

from dispatcher.domain.errors import ConfigurationError
from dispatcher.ledger.check import require_ledger
from dispatcher.settings import FenceMode

if TYPE_CHECKING:
    from airflow.executors.base_executor import BaseExecutor

log = logging.getLogger(__name__)

PROBE_INTERVAL = 180.0
"""Seconds between two looks at the API server."""

PROBE_TIMEOUT = 3.0
"""Seconds that one look may take."""


def check_signing(conf: Any) -> None:
    """Make sure that workloads can be signed with a key that the API server knows.

    :param conf: Airflow's configuration
    :raises ConfigurationError: there is neither a secret nor a private key
    """
    try:
        secret = conf.get("api_auth", "jwt_secret", fallback=None)
        private_key = conf.get("api_auth", "jwt_private_key_path", fallback=None)
    except AirflowConfigException as exc:
        raise ConfigurationError(f"[api_auth] jwt_secret cannot be read: {exc}") from exc
    if not secret and not private_key:
        raise ConfigurationError(
            "no JWT secret: set [api_auth] jwt_secret to the same random value in every component "
            "(or jwt_private_key_path)"
        )


def check_ledger() -> None:
    """Make sure that the ledger's table is there and up to date.

    :raises LedgerMissingError: it is not
    """
    with create_session(scoped=False) as session:
        require_ledger(session)


def ids_may_be_stale() -> bool:
    """Whether other executors or teams share the scheduler (rule 2)."""
    return len(ExecutorLoader.get_executor_names(validate_teams=False)) > 1


def own_names(executor: BaseExecutor) -> set[str | None] | None:
    """Return the names by which a task instance says that it belongs to ``executor`` (rule 13).

    :param executor: an executor that Airflow loaded
    :returns: None for an executor without a name: every task instance is taken as its own
    """
    name = executor.name
    if name is None:
        return None
    own: set[str | None] = {name.module_path, name.module_path.rpartition(".")[2]}
    if name.alias:
        own.add(name.alias)
    if ExecutorLoader.get_default_executor_name(team_name=executor.team_name) == name:
        own.add(None)
    return own


def health_url(conf: Any) -> str:
    """Return where the fence answers, from the address of the execution API.

    :param conf: Airflow's configuration
    """
    base = get_execution_api_server_url(conf).rstrip("/").removesuffix("/execution")
    return f"{base}/dispatcher/health"


class FenceProbe:
    """Asks the API server whether the fence is active, at start and every few minutes.

    :param conf: Airflow's configuration
    :param mode: under ``required`` an API server without the plugin stops the start
    """

    def __init__(self, conf: Any, mode: FenceMode) -> None:
        self._url = health_url(conf)
        self._mode = mode
        self._next = 0.0
        self._finding: str | None = None

    def check_at_start(self) -> None:
        """Look once, and wait for the answer.

        :raises ConfigurationError: the API server answers without the plugin, under ``required``
        """
        self._next = time.monotonic() + PROBE_INTERVAL
        finding, answered = self._look()
        if finding and answered and self._mode is FenceMode.REQUIRED:
            raise ConfigurationError(finding)
        self._tell(finding)

    def check_now_and_then(self) -> None:
        """Look again, in a thread of its own, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROBE_INTERVAL
        threading.Thread(target=lambda: self._tell(self._look()[0]), name="fence-probe", daemon=True).start()

    def _tell(self, finding: str | None) -> None:
        if finding and finding != self._finding:
            log.warning("%s", finding)
        self._finding = finding

    def _look(self) -> tuple[str | None, bool]:
        """Return a finding, or None if all is well, and whether the API server answered at all."""
        address = urlsplit(self._url)
        where = f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
        missing = (
            f"the API server at {where} runs without the dispatcher's fence: install "
            "airflow-hybrid-dispatcher there and serve the core app, or dispatcher.fence.asgi:app"
        )
        try:
            with urlopen(self._url, timeout=PROBE_TIMEOUT) as answer:  # noqa: S310 - an http(s) address
                body = json.load(answer)
        except HTTPError:
            return missing, True
        except (URLError, OSError, HTTPException) as exc:
            why = exc.reason if isinstance(exc, URLError) else exc
            return f"the API server at {where} does not answer ({why}); the fence is asked again later", False
        except ValueError:
            return missing, True
        if not isinstance(body, dict) or body.get("fence") != "active":
            return missing, True
        return None, True
