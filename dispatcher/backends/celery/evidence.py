# SPDX-License-Identifier: Apache-2.0
"""What the broker and the workers hold: evidence of where messages are, and of which queues are consumed.

A message is gone if it waits in no queue and no worker knows it. Queues are read where the broker lets one
(Redis: lists, and the hash of what was delivered and not acknowledged), or counted (AMQP: passive declare).
Workers are asked by remote control. Where that tells too little, nothing is concluded; and since what moves
between two reads is seen by neither, one look proves nothing: see ``lookout``.

Everything here may block for as long as the socket time-outs allow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.pidbox import Mailbox

from dispatcher.backends.celery.publisher import connect
from dispatcher.domain.wire import RUNNING_COMMAND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from celery import Celery

REPLY_SECONDS = 1.0
"""How long to wait for the next reply of a worker."""

MAX_BYTES = 16 * 1024 * 1024
"""How much of the queues is read in one look; of longer ones nothing is concluded."""

PAGE = 50
"""Messages read at once."""

HELD_STATES = ("active", "reserved")
"""What a worker says of messages that it has."""

ASK_AT_ONCE = 500
"""Launches that the workers are asked about in one question."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one look saw.

    :param absent: launches of which neither queues nor workers hold a message
    :param unserved: queues that no worker consumes
    :param workers: how many workers answered
    """

    absent: frozenset[str]
    unserved: frozenset[str]
    workers: int


class TooMuchError(Exception):
    """The queues hold more than is read."""


def gather(app: Celery, waiting: Mapping[str, str]) -> Evidence | None:
    """Look once for the messages of launches.

    :param app: the app that ``create_app`` made
    :param waiting: the queue of each launch, by token
    :returns: None where the broker's transport tells nothing
    :raises BrokerAwayError: no connection to the broker could be made
    :raises Exception: the driver's error, where the connection is lost
    """
    connection = connect(app)
    try:
        workers = Workers(app, connection)
        kind = connection.transport.driver_type
        if kind == "redis":
            return _look_at_redis(connection, workers, waiting)
        if kind == "amqp":
            return _look_at_amqp(connection, workers, waiting)
        return None
    finally:
        connection.collect()


def held_by_workers(app: Celery, tokens: Collection[str]) -> frozenset[str] | None:
    """Ask the workers once which launches they run, or are going to.

    :param app: the app that ``create_app`` made
    :param tokens: the launches
    :returns: those that a worker has; None where nothing can be known: workers take no remote control, none
        answers, or not all of them do
    :raises BrokerAwayError: no connection to the broker could be made
    :raises Exception: the driver's error, where the connection is lost
    """
    if not app.conf.worker_enable_remote_control:
        return None
    connection = connect(app)
    try:
        return Workers(app, connection).hold(tokens)
    finally:
        connection.collect()


class Workers:
    """The workers that answer on a connection, and the queues they consume.

    :param app: for the configuration of remote control
    :param connection: a kombu connection
    """

    def __init__(self, app: Celery, connection: Any) -> None:
        make: Any = Mailbox  # kombu has types only here and there
        conf = app.conf
        # Not the mailbox of ``app.control``: it publishes from a pool that tries for ever to connect.
        self._mailbox = make(
            conf.control_exchange,
            "fanout",
            connection,
            accept=conf.accept_content,
            serializer=conf.task_serializer,
        )
        answers = [one for one in self._ask("active_queues", {}, None) if isinstance(one[1], list)]
        self._names = {name for name, _ in answers}
        self.queues = [{queue["name"] for queue in answer} for _, answer in answers]

    def consuming(self, queue: str) -> int:
        """Return how many of them consume a queue."""
        return sum(queue in names for names in self.queues)

    def know(self, tokens: Collection[str]) -> set[str]:
        """Return those of ``tokens`` that a worker runs or is going to run.

        One that lost its connection threw away what it had not begun, and still answers for it as "ready".
        """
        return self._query(tokens, len(self.queues))[0]

    def hold(self, tokens: Collection[str]) -> frozenset[str] | None:
        """Return those of ``tokens`` that a worker has; None where one that answered before did not now.

        Celery's own command forgets a delivery that runs as soon as another one of it was dropped, so the
        guard's is asked as well. Workers without it do not know the command, and run nothing that was claimed
        by the guard. All answers are waited for, and not as many as there were before: the worker that has
        the launch may be a slow one, which was too late for the first question.
        """
        held, complete = self._query(tokens, None)
        for chunk in _portions(tokens):
            answers = [one for one in self._ask(RUNNING_COMMAND, {"ids": chunk}, None) if _tells(one[1])]
            complete = complete and self._names <= {name for name, _ in answers}
            held.update(token for _, answer in answers if isinstance(answer, list) for token in answer)
        return frozenset(held) if complete else None

    def _query(self, tokens: Collection[str], limit: int | None) -> tuple[set[str], bool]:
        """Return which of ``tokens`` workers have, and whether there are workers and all of them answered.

        :param tokens: the launches
        :param limit: after how many answers no more are waited for
        """
        if not self.queues:
            return set(), False
        known: set[str] = set()
        complete = True
        for chunk in _portions(tokens):
            answers = [one for one in self._ask("query_task", {"ids": chunk}, limit) if "error" not in one[1]]
            complete = complete and self._names <= {name for name, _ in answers}
            for _, answer in answers:
                known.update(token for token, (state, *_) in answer.items() if state in HELD_STATES)
        return known, complete

    def _ask(self, command: str, arguments: dict[str, Any], limit: int | None) -> Iterator[tuple[str, Any]]:
        """Yield the answers of workers, each with its name."""
        replies = self._mailbox.multi_call(command, arguments, timeout=REPLY_SECONDS, limit=limit)
        for reply in replies or ():
            yield from reply.items()


def _tells(answer: Any) -> bool:
    """Whether a worker's answer to the guard's command tells what it has: a list, or that it has no guard."""
    return isinstance(answer, list) or answer == {"error": repr(KeyError(RUNNING_COMMAND))}


def _portions(tokens: Collection[str]) -> Iterator[list[str]]:
    ordered = sorted(tokens)
    for start in range(0, len(ordered), ASK_AT_ONCE):
        yield ordered[start : start + ASK_AT_ONCE]


def _look_at_redis(connection: Any, workers: Workers, waiting: Mapping[str, str]) -> Evidence:
    unserved = frozenset(queue for queue in set(waiting.values()) if not workers.consuming(queue))
    missing = set(waiting)
    channel = connection.default_channel
    budget = Budget()
    try:
        with channel.conn_or_acquire() as client:
            for queue in sorted(set(waiting.values())):
                for key in _keys_of(channel, queue):
                    missing.difference_update(_ids_in_list(client, key, budget))
            delivered = missing.intersection(
                _ids_in_hash(client, channel.global_keyprefix + channel.unacked_key, budget)
            )
    except TooMuchError:
        return Evidence(frozenset(), unserved, len(workers.queues))
    if not workers.queues:
        # Whoever has what was delivered does not answer: it may still be at it.
        missing -= delivered
    # What was delivered and no worker knows was with one that is gone, or that lost its connection.
    return Evidence(frozenset(missing - workers.know(missing)), unserved, len(workers.queues))


def _look_at_amqp(connection: Any, workers: Workers, waiting: Mapping[str, str]) -> Evidence:
    empty: set[str] = set()
    unserved: set[str] = set()
    for queue in set(waiting.values()):
        messages, consumers = _counts(connection, queue)
        if not consumers:
            unserved.add(queue)
        # What was delivered is counted nowhere: every consumer has to say what it holds.
        if not messages and consumers <= workers.consuming(queue):
            empty.add(queue)
    missing = {token for token, queue in waiting.items() if queue in empty}
    return Evidence(frozenset(missing - workers.know(missing)), frozenset(unserved), len(workers.queues))


def _counts(connection: Any, queue: str) -> tuple[int, int]:
    """Return messages that are ready, and consumers; a queue that is not there has neither."""
    with connection.channel() as channel:
        try:
            declared = channel.queue_declare(queue=queue, passive=True)
        except connection.channel_errors as exc:
            if getattr(exc, "reply_code", None) != 404:  # noqa: PLR2004  # AMQP's "not found"
                raise
            return 0, 0
        return int(declared.message_count), int(declared.consumer_count)


class Budget:
    """How many bytes may still be read."""

    def __init__(self) -> None:
        self._left = MAX_BYTES

    def spend(self, amount: int) -> None:
        """Count bytes that were read.

        :raises TooMuchError: it is too much
        """
        self._left -= amount
        if self._left < 0:
            raise TooMuchError


def _keys_of(channel: Any, queue: str) -> list[str]:
    """Return the lists of a queue, one for each priority that kombu tells apart."""
    suffixes = ["" if not step else f"{channel.sep}{step}" for step in channel.priority_steps]
    return [f"{channel.global_keyprefix}{queue}{suffix}" for suffix in suffixes]


def _ids_in_list(client: Any, key: str, budget: Budget) -> Iterator[str]:
    # From the end that messages are put in at: what arrives meanwhile is read twice, and nothing is skipped.
    start = 0
    while page := client.lrange(key, start, start + PAGE - 1):
        for raw in page:
            budget.spend(len(raw))
            yield from _id_of(raw)
        start += PAGE


def _ids_in_hash(client: Any, key: str, budget: Budget) -> Iterator[str]:
    for _, raw in client.hscan_iter(key, count=PAGE):
        budget.spend(len(raw))
        yield from _id_of(raw)


def _id_of(raw: bytes | str) -> Iterator[str]:
    try:
        message = json.loads(raw)
        if isinstance(message, list):  # with exchange and routing key, as in the hash
            message = message[0]
        token = message["headers"]["id"]
    except (ValueError, LookupError, TypeError):
        return  # somebody else's
    if isinstance(token, str):
        yield token
