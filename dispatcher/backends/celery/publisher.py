# SPDX-License-Identifier: Apache-2.0
"""Talking to the broker: sending messages over one connection, revoking, and asking whether it is there.

Everything here runs in the broker's lane and may block for as long as the socket time-outs allow.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.exceptions import QueueNotFound
from kombu.exceptions import EncodeError, OperationalError
from kombu.pidbox import Mailbox

from dispatcher.backends.base import Postponed, Rejected, Sent, Submission, SubmitResult
from dispatcher.backends.celery.app import TASK_NAME, describe
from dispatcher.backends.celery.batch import CHUNK
from dispatcher.backends.celery.pipeline import Form, NoCopyError, Pipeline, open_pipeline

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from celery import Celery

    from dispatcher.backends.celery.batch import Batch

log = logging.getLogger(__name__)

WORKLOAD_AT_FAULT = (EncodeError, QueueNotFound)
"""What Celery says of a message that it cannot make, before the broker is asked for anything."""


class BrokerAwayError(Exception):
    """No connection to the broker could be made; the message is one line without credentials."""


class Publisher:
    """Sends batches over one connection, which is made when it is needed and kept while it works.

    :param app: the app that ``create_app`` made
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._task = app.tasks[TASK_NAME]
        self._connection: Any = None
        self._producer: Any = None
        self._pipeline: Pipeline | None = None

    def send(self, batch: Batch) -> None:
        """Send a batch, in its order, until it is done or its time is up: many at once where the broker can.

        A queue that the broker refuses is skipped for the rest of the batch, so that it cannot hold up the
        others. Once no connection can be made, the rest is postponed.

        :param batch: what to send; holds the results afterwards
        """
        refused: dict[str, Postponed] = {}
        forms: dict[str, Form | None] = {}
        while (queue := batch.queue()) is not None:
            if queue in refused:
                for submission in batch.take({queue}, CHUNK):
                    batch.settle(submission.token, refused[queue])
                continue
            try:
                producer = self._connected()
            except BrokerAwayError as exc:
                batch.postpone_rest(Postponed(str(exc)))
                return
            if queue not in forms:
                forms[queue] = self._form(queue)
            if forms[queue] is None or self._pipeline is None:
                results = [(one, self._publish(producer, one)) for one in batch.take({queue}, 1)]
            else:
                known = {name: form for name, form in forms.items() if form and name not in refused}
                results = self._push(self._pipeline, batch.take(known, CHUNK), known)
            for submission, result in results:
                if isinstance(result, Postponed) and not result.ambiguous:
                    refused[submission.queue] = result
                batch.settle(submission.token, result)

    def check(self) -> None:
        """Make a connection and close it again.

        :raises BrokerAwayError: there is none to be had
        """
        connect(self._app).release()

    def revoke(self, tokens: Collection[str]) -> None:
        """Tell the workers to drop these messages.

        Nothing that runs is sent a signal: it would kill a supervisor that is about to report or to upload a
        log, and leave the process of a callback behind. The fence stops it at its next call.

        This is what ``app.control.revoke`` sends. That one publishes from a pool that all apps of the process
        share, and tries for ever, so the connection is one of its own and new: one that certainly works.

        :param tokens: task ids
        :raises BrokerAwayError: nobody was told
        """
        connection = connect(self._app)
        conf = self._app.conf
        make: Any = Mailbox  # kombu has types only here and there
        mailbox = make(conf.control_exchange, "fanout", connection, serializer=conf.task_serializer)
        mailbox.abcast("revoke", {"task_id": list(tokens)})
        connection.release()

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()

    def _connected(self) -> Any:
        if self._pipeline is not None and not self._still_connected(self._pipeline):
            self._disconnect()
        if self._producer is None:
            self._connection = connect(self._app)
            try:
                self._pipeline = open_pipeline(self._app, self._connection.default_channel)
            except Exception as exc:
                self._disconnect()
                raise BrokerAwayError(f"no connection to the broker: {describe(exc)}") from exc
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        return self._producer

    def _still_connected(self, pipeline: Pipeline) -> bool:
        """Whether the broker answers: what goes out on a dead connection is ambiguous for no good reason."""
        try:
            pipeline.check()
        except Exception as exc:  # noqa: BLE001
            log.debug("The connection to the broker was lost: %s", describe(exc))
            return False
        return True

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()
        if connection is not None:
            connection.collect()

    def _form(self, queue: str) -> Form | None:
        """Return the form of the messages for a queue, or None if they are sent singly.

        Whatever goes wrong here goes wrong again with the first message, and is told of that.
        """
        if self._pipeline is None:
            return None
        try:
            return self._pipeline.form(
                lambda channel, token, payload: self._apply(
                    self._app.amqp.Producer(channel, auto_declare=False), queue, token, payload
                )
            )
        except NoCopyError:
            return None
        except Exception as exc:  # noqa: BLE001
            log.debug("No form for queue %s: %s", queue, describe(exc))
            return None

    def _push(
        self, pipeline: Pipeline, submissions: Sequence[Submission], forms: Mapping[str, Form]
    ) -> list[tuple[Submission, SubmitResult]]:
        results: list[tuple[Submission, SubmitResult]] = []
        filled: list[Submission] = []
        messages: list[tuple[str, str]] = []
        for submission in submissions:
            form = forms[submission.queue]
            try:
                messages.append((form.key, form.fill(submission.token, submission.payload)))
            except EncodeError as exc:
                results.append((submission, _rejected(exc)))
            else:
                filled.append(submission)
        try:
            answers = pipeline.push(messages)
        except Exception as exc:  # noqa: BLE001  # whatever happened, any of them may have arrived
            self._disconnect()
            lost = Postponed(f"the connection to the broker was lost: {describe(exc)}", ambiguous=True)
            return [*results, *((submission, lost) for submission in filled)]
        if any(answers):
            self._disconnect()  # a refusal may mean that it is the primary no longer
        for submission, error in zip(filled, answers, strict=True):
            result = Sent(submission.token) if error is None else _refused(error)
            results.append((submission, result))
        return results

    def _publish(self, producer: Any, submission: Submission) -> SubmitResult:
        try:
            self._apply(producer, submission.queue, submission.token, submission.payload)
        except WORKLOAD_AT_FAULT as exc:
            return _rejected(exc)
        except OperationalError as exc:
            refused = isinstance(exc.__cause__, _channel_errors(producer))
            self._disconnect()
            if refused:
                return _refused(exc)
            return Postponed(f"the connection to the broker was lost: {describe(exc)}", ambiguous=True)
        except Exception as exc:  # noqa: BLE001  # one message that fails must not hold up the others
            self._disconnect()
            reason = f"sending failed: {type(exc).__name__}: {describe(exc)}"
            return Postponed(reason, ambiguous=True)
        return Sent(submission.token)

    def _apply(self, producer: Any, queue: str, token: str, payload: str) -> None:
        self._task.apply_async(
            args=(payload,),
            task_id=token,
            queue=queue,
            producer=producer,
            retry=False,
            # Workers log it and send it to monitors; the payload holds a JWT.
            argsrepr=f"('<workload of {token}>',)",
        )


def _rejected(error: Exception) -> Rejected:
    return Rejected(f"Celery cannot send the workload: {describe(error)}")


def _refused(error: Exception) -> Postponed:
    return Postponed(f"the broker refused the message: {describe(error)}")


def connect(app: Celery) -> Any:
    """Connect to the broker, trying each of its addresses once.

    :param app: a Celery app
    :returns: a ``kombu.Connection``
    :raises BrokerAwayError: no address answers
    """
    connection = app.connection_for_write()
    try:
        connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1))
        # The first channel belongs to connecting: Redis is asked for an answer here.
        connection.default_channel  # noqa: B018
    except Exception as exc:
        connection.collect()
        raise BrokerAwayError(f"no connection to the broker: {describe(exc)}") from exc
    return connection


def _channel_errors(producer: Any) -> tuple[Any, ...]:
    connection = producer.connection
    return () if connection is None else tuple(connection.channel_errors)
