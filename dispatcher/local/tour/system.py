# SPDX-License-Identifier: Apache-2.0
"""The running system that the tour is taken on: all of it is found in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from airflow.configuration import conf

from dispatcher.example_dags import journal
from dispatcher.local.errors import LocalModeError
from dispatcher.local.login import Login, read_passwords


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A running Airflow with this executor.

    :param api_url: address of the API server, without a slash at the end
    :param login: user of the REST API
    :param journal: where the example's bodies note that they ran
    :param gate: the file for which the example's sensor waits
    :param worker_log: what the Celery worker writes
    :param namespace: where pods go
    """

    api_url: str
    login: Login
    journal: Path
    gate: Path
    worker_log: Path
    namespace: str


def find_system(worker_log: Path) -> System:
    """Read Airflow's configuration and the example's environment variables.

    :param worker_log: log file of the one Celery worker
    :raises LocalModeError: a variable is missing
    """
    try:
        return System(
            api_url=conf.get_mandatory_value("api", "base_url").rstrip("/"),
            login=read_passwords(
                Path(conf.get_mandatory_value("core", "simple_auth_manager_passwords_file"))
            ),
            journal=Path(os.environ[journal.JOURNAL_VARIABLE]),
            gate=Path(os.environ[journal.GATE_VARIABLE]),
            worker_log=worker_log,
            namespace=conf.get_mandatory_value("kubernetes_executor", "namespace"),
        )
    except KeyError as exc:
        raise LocalModeError(f"the environment variable {exc.args[0]} is missing") from exc
