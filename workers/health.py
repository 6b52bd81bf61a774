# SPDX-License-Identifier: Apache-2.0
"""Whether the Celery worker of this machine consumes: ``python -m workers.health``, for liveness probes.

A worker that answers a ping may have stopped to consume, for instance after it lost its broker. It is taken
as unhealthy if it does not answer, or if messages wait in its queues, it has room for more, and for some
seconds it takes none. One that is busy, or that was told to consume no queue, is healthy.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError
from kombu.pidbox import Mailbox

from workers.consumption import COMMAND

if TYPE_CHECKING:
    from celery import Celery

HEALTHY, UNHEALTHY = 0, 1
"""Exit codes; 2 is for wrong arguments."""

POLL_SECONDS = 1.0


class BrokerAwayError(Exception):
    """No connection to the broker can be made."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of the worker.

    :param healthy: whether it consumes, as far as that can be told
    :param text: one line for people
    """

    healthy: bool
    text: str


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a worker and its queues.

    :param consumption: the worker's answer, see ``workers.consumption``; None if there was none
    :param waiting: messages in its queues
    """

    consumption: Mapping[str, Any] | None
    waiting: int = 0

    @property
    def has_room(self) -> bool:
        """Whether the worker may take another message."""
        if self.consumption is None:
            return False
        held, prefetch = self.consumption["held"], self.consumption["prefetch"]
        return held < prefetch if prefetch else not held


def judge(
    look: Callable[[], Look], seconds: float, *, clock: Callable[[], float] = time.monotonic
) -> Verdict:
    """Look until it is clear how the worker is.

    :param look: looks once; takes a moment
    :param seconds: for how long a worker with room may leave messages where they are
    :param clock: monotonic seconds
    """
    first = look()
    if first.consumption is None:
        return Verdict(healthy=False, text="does not answer")
    if not first.consumption["consumes"]:
        return Verdict(healthy=False, text="answers, but has no consumer")
    if not first.consumption["queues"]:
        return Verdict(healthy=True, text="was told to consume no queue")
    queues = ", ".join(first.consumption["queues"])
    deadline = clock() + seconds
    current = first
    while current.waiting and current.has_room:
        if clock() > deadline:
            text = f"takes nothing from {queues} though {current.waiting} messages wait and it has room"
            return Verdict(healthy=False, text=text)
        current = look()
        if current.consumption is None:
            return Verdict(healthy=False, text="does not answer any more")
        if current.consumption["received"] != first.consumption["received"]:
            break
    return Verdict(healthy=True, text=f"consumes {queues}")


class Observer:
    """Looks at one worker over one connection.

    :param app: the worker's app
    :param hostname: its node name
    :param timeout: seconds to wait for its answer
    :raises BrokerAwayError: no connection to the broker can be made
    """

    def __init__(self, app: Celery, hostname: str, timeout: float) -> None:
        self._hostname = hostname
        self._timeout = timeout
        self._connection: Any = app.connection_for_read(connect_timeout=timeout)
        make: Any = Mailbox  # kombu has types only here and there
        self._mailbox = make(
            app.conf.control_exchange,
            "fanout",
            self._connection,
            accept=app.conf.accept_content,
            serializer=app.conf.task_serializer,
        )
        self._looked = False
        try:
            with self._broker_errors():
                self._connection.ensure_connection(max_retries=1, interval_start=0)
                self._connection.default_channel  # noqa: B018  # Redis is asked for an answer here
        except BrokerAwayError:
            self.close()
            raise

    def look(self) -> Look:
        """Ask the worker, and count what waits in its queues.

        :raises BrokerAwayError: the connection to the broker was lost
        """
        if self._looked:
            time.sleep(POLL_SECONDS)
        self._looked = True
        with self._broker_errors():
            return self._look()

    def close(self) -> None:
        """Close the connection."""
        self._connection.collect()

    def _look(self) -> Look:
        answers = self._mailbox.call([self._hostname], COMMAND, timeout=self._timeout)
        consumption = next((answer[self._hostname] for answer in answers or ()), None)
        if consumption is None or "queues" not in consumption:
            return Look(None)
        return Look(consumption, sum(self._count(queue) for queue in consumption["queues"]))

    @contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, *self._connection.recoverable_connection_errors) as exc:
            # The text of a driver's error may hold the address with its password; that of kombu does not.
            address = self._connection.as_uri()
            raise BrokerAwayError(f"the broker {address} does not answer ({type(exc).__name__})") from exc

    def _count(self, queue: str) -> int:
        with self._connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue=queue, passive=True).message_count)
            except self._connection.channel_errors:
                return 0  # on Redis a queue is there only while messages are in it


def check(app: Celery, hostname: str, *, timeout: float, idle: float) -> Verdict:
    """Say how one worker is.

    :param app: the worker's app
    :param hostname: its node name
    :param timeout: seconds to wait for its answer
    :param idle: see ``judge``
    :raises BrokerAwayError: no connection to the broker can be made, or it was lost
    """
    observer = Observer(app, hostname, timeout)
    try:
        return judge(observer.look, idle)
    finally:
        observer.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line and return the exit code.

    :param argv: arguments of the command line
    """
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, options.idle + 3 * options.timeout)
    try:
        verdict = _verdict(options)
    except BrokerAwayError as exc:
        verdict = Verdict(healthy=options.broker_may_be_away, text=f"is not known: {exc}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    print(f"{options.hostname} {verdict.text}")  # noqa: T201  # the line is for people
    return HEALTHY if verdict.healthy else UNHEALTHY


def _verdict(options: argparse.Namespace) -> Verdict:
    # Airflow logs to stdout by default; the one line that is asked for stands there alone.
    with redirect_stdout(sys.stderr):
        from airflow.providers.celery.executors.celery_executor_utils import app

        return check(app, options.hostname, timeout=options.timeout, idle=options.idle)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.health", description=__doc__)
    parser.add_argument(
        "--hostname",
        default=f"celery@{socket.gethostname()}",
        help="node name of the worker (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", type=float, default=5.0, help="seconds to wait for an answer (default: %(default)g)"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=10.0,
        help="seconds that a worker with room may leave messages in its queues (default: %(default)g)",
    )
    parser.add_argument(
        "--broker-may-be-away",
        action="store_true",
        help="exit with 0 when the broker itself does not answer: a restart of the worker would not help",
    )
    return parser


def _give_up(*_: Any) -> None:
    raise BrokerAwayError("the broker hangs")


if __name__ == "__main__":
    sys.exit(main())
