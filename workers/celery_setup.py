# SPDX-License-Identifier: Apache-2.0
"""What ``airflow celery worker`` does around Celery's own worker, for plain ``celery -A workers.celery_app``.

The options that the stock command takes from ``[celery]`` and ``[logging]`` become the defaults of the
command line, so an option that the user gives still wins. The rest hangs on Celery's signals: logging when
the worker is made, result tables and helper processes before its pool starts, their end when it shuts down.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import kombu
from airflow.configuration import conf
from celery import maybe_patch_concurrency
from celery.signals import celeryd_init, worker_init, worker_shutdown
from click.core import ParameterSource
from kombu.pidbox import Mailbox
from sqlalchemy.exc import IntegrityError

# Its import connects the handler of [logging] celery_stdout_stderr_separation.
import airflow.providers.celery.cli.celery_command  # noqa: F401  # isort: skip

from workers.celery_helpers import WorkerHelpers

if TYPE_CHECKING:
    from celery import Celery

SKIP_LOG_SERVER = "skip_serve_logs"

ANSWER_SECONDS = 1.0
"""How long another worker of the same name has to answer."""

_helpers = WorkerHelpers()


def prepare_command_line(app: Celery) -> None:
    """Give the ``worker`` command the defaults and the flag of the stock command.

    Does nothing to the defaults where the app is not being loaded by the ``celery`` command.

    :param app: the Celery app that the command line loads
    """
    app.user_options["worker"].add(
        click.Option(
            ["--skip-serve-logs", SKIP_LOG_SERVER],
            is_flag=True,
            help="Do not start the server from which the UI reads the logs of running tasks.",
        )
    )
    context = click.get_current_context(silent=True)
    if context is None:
        return
    defaults = worker_defaults()
    context.default_map = {**(context.default_map or {}), "worker": defaults}
    # Eventlet and gevent patch the standard library, which has to happen before anything else.
    maybe_patch_concurrency(["-P", str(defaults["pool"])])


def worker_defaults() -> dict[str, str]:
    """Return the worker options that the configuration sets, by name of the command line option."""
    defaults = {
        "loglevel": conf.get("logging", "celery_logging_level", fallback="")
        or conf.get_mandatory_value("logging", "logging_level"),
        "pool": conf.get("celery", "pool", fallback="prefork"),
        "optimization": "fair",
    }
    if autoscale := conf.get("celery", "worker_autoscale", fallback=None):
        defaults["autoscale"] = autoscale
    return {name: value for name, value in defaults.items() if value}


def refuse_taken_name(instance: Any, **_: Any) -> None:
    """End a worker whose name, given on the command line, is that of another one that runs.

    Two of one name would share a mailbox: each would get half of what both are told.

    :param instance: the Celery worker
    :raises SystemExit: another worker of this name answers
    """
    context = click.get_current_context(silent=True)
    if context is None or context.get_parameter_source("hostname") is not ParameterSource.COMMANDLINE:
        return
    if is_taken(instance.app, instance.hostname):
        raise SystemExit(
            f"Error: a worker with the name {instance.hostname} is running already; choose another one."
        )


def is_taken(app: Celery, name: str) -> bool:
    """Return whether a worker of this name answers; where the broker is away, none does.

    :param app: the worker's app; its pools are left alone
    :param name: a node name
    """
    with app.connection_for_read() as connection:
        conf = app.conf
        make: Any = Mailbox  # kombu has types only here and there
        mailbox = make(
            conf.control_exchange, "fanout", connection, accept=conf.accept_content, serializer="json"
        )
        try:
            connection.ensure_connection(max_retries=1, interval_start=0)
            return bool(mailbox.call([name], "ping", timeout=ANSWER_SECONDS))
        except (kombu.exceptions.OperationalError, *connection.recoverable_connection_errors):
            return False


def configure_logging(**_: Any) -> None:
    """Set up Airflow's logging to stdout, before Celery adds its own levels and loggers to it."""
    from airflow.sdk.log import configure_logging as configure_airflow_logging

    own = conf.get("celery", "json_logs", fallback="")
    section = "celery" if own and own.lower() != "none" else "logging"
    configure_airflow_logging(
        output=sys.stdout.buffer, json_output=conf.getboolean(section, "json_logs", fallback=False)
    )


def create_result_tables(sender: Any, **_: Any) -> None:
    """Create the tables of a database result back end before the pool's processes race to do so.

    :param sender: the Celery worker
    """
    backend = sender.app.backend
    if not hasattr(backend, "ResultSession"):
        return
    try:
        backend.ResultSession().close()
    except IntegrityError:
        # PostgreSQL's answer to the loser of a race with another worker; the tables are there.
        return


def start_helpers(sender: Any, **_: Any) -> None:
    """Start the log server and the clean-up of stale bundles.

    :param sender: the Celery worker
    """
    _helpers.start(log_server=not sender.options.get(SKIP_LOG_SERVER))


def stop_helpers(**_: Any) -> None:
    """End the processes that ``start_helpers`` started."""
    _helpers.stop()


celeryd_init.connect(configure_logging)
celeryd_init.connect(refuse_taken_name)
worker_init.connect(create_result_tables)
worker_init.connect(start_helpers)
worker_shutdown.connect(stop_helpers)
