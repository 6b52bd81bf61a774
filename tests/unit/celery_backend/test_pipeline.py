# SPDX-License-Identifier: Apache-2.0
"""What stands for a message while a form is made reaches no queue, however kombu would push it."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from dispatcher.backends.celery.pipeline import NoCopyError, Pipeline


class Commands:
    """A pipeline of a Redis client.

    :param executed: where its commands go when they are executed
    """

    def __init__(self, executed):
        self._executed = executed
        self._commands = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._commands.clear()

    def lpush(self, *arguments):
        self._commands.append(("lpush", *arguments))

    def pexpire(self, *arguments):
        self._commands.append(("pexpire", *arguments))

    def execute(self):
        self._executed.extend(self._commands)


class Client:
    def __init__(self):
        self.executed = []

    def pipeline(self):
        return Commands(self.executed)


class Channel:
    """A channel of kombu.

    :param connection: the client, which stands for the connection here
    """

    def __init__(self, connection):
        self.connection = connection

    @contextmanager
    def conn_or_acquire(self, client=None):
        yield client or self.connection


@pytest.fixture
def client():
    return Client()


def test_what_is_pushed_together_with_other_commands_is_not_copied(client):
    def send(channel, token, _):
        with channel.conn_or_acquire() as redis, redis.pipeline() as commands:
            commands.lpush("default", token)
            commands.pexpire("default", 60_000)
            commands.execute()

    with pytest.raises(NoCopyError):
        Pipeline(Channel(client)).form(send)

    assert client.executed == []


def test_other_pipelines_are_executed(client):
    """A queue is declared in earnest."""

    def send(channel, *_):
        with channel.conn_or_acquire() as redis, redis.pipeline() as commands:
            commands.pexpire("default", 60_000)
            commands.execute()

    with pytest.raises(NoCopyError):
        Pipeline(Channel(client)).form(send)

    assert client.executed == [("pexpire", "default", 60_000)]
