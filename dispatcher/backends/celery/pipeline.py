# SPDX-License-Identifier: Apache-2.0
"""Sending many messages at once to a broker that can take them so: Redis.

kombu sends each message on its own and waits for the answer. Here Celery and kombu make one message for each
queue, with their own code from ``apply_async`` to the bytes that kombu would push; the messages of the batch
are copies of it that differ in token, payload and delivery tag, and go out in one pipeline. Where a message
is not of the one shape in which that is certain to be right, there is no copy, and it is sent singly.

Everything here runs in the broker's lane.
"""

from __future__ import annotations

import json
import os
import uuid
from base64 import b64decode, b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from celery import signals
from kombu.exceptions import EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery import Celery

    Pushed = list[tuple[str, str]]
    """Redis key and text of each message."""

TAG_BYTES = 16
"""As random as the UUID that kombu takes for a delivery tag, in which nobody looks for anything."""

REDIS = "redis"
"""What kombu calls a transport whose queues are Redis lists, with TLS and Sentinel as well."""


class NoCopyError(Exception):
    """Messages for this queue cannot be copied, and are sent one by one."""


@dataclass(frozen=True, slots=True)
class Form:
    """A message that lacks its token, its payload and its delivery tag.

    :param key: the Redis key of the list that it is pushed to
    :param text: the message as kombu pushes it, to be filled in by ``%``, which looks at it only once
    :param body: its body as JSON, to be filled in with the payload
    """

    key: str
    text: str = field(repr=False)
    body: str = field(repr=False)

    def fill(self, token: str, payload: str) -> str:
        """Return the message of one launch, ready to be pushed.

        :param token: the launch token
        :param payload: the workload as JSON: a secret
        :raises EncodeError: it is no text
        """
        if not isinstance(payload, str):
            raise EncodeError(f"its payload is no text, but {type(payload).__name__}")
        argument = json.dumps(payload)  # of text, kombu's own encoder makes the same
        body = b64encode((self.body % argument).encode()).decode()
        return self.text % {"token": token, "tag": os.urandom(TAG_BYTES).hex(), "body": body}


# Random, so that they stand for nothing else; of letters, digits and dashes, so that JSON leaves them alone.
_TOKEN, _PAYLOAD, _TAG, _BODY = (f"{name}-{uuid.uuid4()}" for name in ("token", "payload", "tag", "body"))


class Pipeline:
    """A channel of kombu to Redis that sends many messages at once.

    :param channel: a channel of kombu, whose connection is used
    """

    def __init__(self, channel: Any) -> None:
        self._channel = _recording(channel.__class__)(channel.connection)

    def form(self, send: Callable[[Any, str, str], object]) -> Form:
        """Return the form of the messages for one queue.

        :param send: sends one by ``apply_async``, given a channel, a token and a payload; declares the queue
        :raises NoCopyError: they must be sent one by one
        :raises Exception: what Celery or the broker says of the queue
        """
        with self._channel.recorded() as pushed:
            send(self._channel, _TOKEN, _PAYLOAD)
        if len(pushed) != 1:
            raise NoCopyError
        return _form(*pushed[0])

    def check(self) -> None:
        """Have the broker answer, so that a connection that is dead already is not taken for a send.

        :raises Exception: it does not
        """
        with self._channel.conn_or_acquire() as client:
            client.ping()

    def push(self, messages: Sequence[tuple[str, str]]) -> list[Exception | None]:
        """Push messages and wait for the answers; the order within a list is kept.

        :param messages: Redis key and text of each
        :returns: for each what the broker had against it, or None
        :raises Exception: the connection was lost, and any of them may have arrived
        """
        by_key: dict[str, list[str]] = {}
        for key, text in messages:
            by_key.setdefault(key, []).append(text)
        with self._channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipeline:
            for key, texts in by_key.items():
                pipeline.lpush(key, *texts)
            answers = pipeline.execute(raise_on_error=False)
        of_key = dict(zip(by_key, answers, strict=True))
        return [of_key[key] if isinstance(of_key[key], Exception) else None for key, _ in messages]

    def close(self) -> None:
        """Close the connections."""
        self._channel.close()


def open_pipeline(app: Celery, channel: Any) -> Pipeline | None:
    """Return what sends many messages at once over the broker of ``channel``, or None where nothing does.

    Where monitors are told of each message, or somebody listens to Celery's signals and perhaps changes it,
    each is sent singly.

    :param app: the app that ``create_app`` made
    :param channel: a channel of kombu
    """
    listened_to = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
    told = app.conf.task_send_sent_event or any(signal.receivers for signal in listened_to)
    # What a channel of AMQP calls its connection is no transport of kombu, and has no such name.
    is_redis = getattr(channel.connection, "driver_type", None) == REDIS
    return None if told or not is_redis else Pipeline(channel)


def _form(key: str, text: str) -> Form:
    """Take apart what kombu would have pushed.

    :raises NoCopyError: it is not of the one shape that can be copied
    """
    message = json.loads(text)
    headers, properties = message["headers"], message["properties"]
    if not _is_plain(message) or headers.get("eta") or headers.get("expires") or properties.get("expiration"):
        raise NoCopyError
    encoded = message["body"]
    body = b64decode(encoded).decode()
    placeholders = text.replace(encoded, _BODY).replace(properties["delivery_tag"], _TAG)
    once = body.count(f'"{_PAYLOAD}"') == 1 and placeholders.count(_BODY) == placeholders.count(_TAG) == 1
    if not once or _PAYLOAD in placeholders or _TOKEN in body:
        raise NoCopyError
    return Form(
        key,
        _template(placeholders, {_TOKEN: "%(token)s", _TAG: "%(tag)s", _BODY: "%(body)s"}),
        _template(body, {f'"{_PAYLOAD}"': "%s"}),
    )


def _template(text: str, fields: Mapping[str, str]) -> str:
    template = text.replace("%", "%%")
    for placeholder, name in fields.items():
        template = template.replace(placeholder, name)
    return template


def _is_plain(message: Mapping[str, Any]) -> bool:
    return (
        message["content-type"] == "application/json"
        and message["content-encoding"] == "utf-8"
        and message["properties"]["body_encoding"] == "base64"
        and "compression" not in message["headers"]
    )


class _Recorder:
    """A Redis client that keeps messages instead of pushing them."""

    def __init__(self, client: Any, pushed: Pushed) -> None:
        self._client = client
        self._pushed = pushed

    def lpush(self, key: str, text: str) -> None:
        self._pushed.append((key, text))

    def publish(self, *_: object) -> None:
        raise NoCopyError  # to a fanout exchange

    def pipeline(self, *arguments: Any, **options: Any) -> _Unsent:
        return _Unsent(self._client.pipeline(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)  # queues are declared in earnest


class _Unsent:
    """A pipeline of a Redis client that takes no message.

    kombu from 5.7 on pushes the messages of a queue that expires together with commands that put its end off,
    which a copy would lack. Sizes and bindings of queues are asked for and written in pipelines as well.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def __enter__(self) -> Self:
        self._pipeline.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._pipeline.__exit__(*raised)

    def lpush(self, *_: object) -> None:
        raise NoCopyError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


class _Recording:
    """What makes a channel of kombu keep the messages that it is about to push."""

    _pushed: Pushed | None = None

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        channel: Any = super()
        with channel.conn_or_acquire(client) as real:
            yield real if self._pushed is None else _Recorder(real, self._pushed)

    @contextmanager
    def recorded(self) -> Iterator[Pushed]:
        pushed: Pushed = []
        self._pushed = pushed
        try:
            yield pushed
        finally:
            self._pushed = None


@cache
def _recording(channel_class: Any) -> Callable[[Any], Any]:
    return type("RecordingChannel", (_Recording, channel_class), {})
