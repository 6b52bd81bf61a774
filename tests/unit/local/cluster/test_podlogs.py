# SPDX-License-Identifier: Apache-2.0
"""Logs of pods: lines with their times, and readers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.local.cluster.podlogs import LINE_BYTES, LogQuery, Pipe, PodLog

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Clock:
    def __init__(self):
        self.moment = START

    def __call__(self):
        return self.moment


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(tmp_path, clock):
    return PodLog(tmp_path / "log", clock)


def read(log, **query):
    async def collect():
        return b"".join([part async for part in log.read(LogQuery(**query))])

    return asyncio.run(collect())


def test_lines_are_kept_once_they_are_whole(log):
    log.append(b"one\ntw")
    assert read(log) == b"one\n"
    log.append(b"o\n\nthree")
    assert read(log) == b"one\ntwo\n\n"
    log.end()
    assert read(log) == b"one\ntwo\n\nthree"


def test_no_output_is_an_empty_log(log):
    assert read(log) == b""
    log.end()
    assert read(log, follow=True) == b""


def test_bytes_stay_as_they_are(log):
    output = bytes(range(256)) * 3 + b"\n"
    log.append(output)

    assert read(log) == output


@pytest.mark.parametrize(
    ("tail", "expected"),
    [(0, b""), (1, b"three"), (2, b"two\nthree"), (3, b"one\ntwo\nthree"), (9, b"one\ntwo\nthree")],
)
def test_the_tail(log, tail, expected):
    log.append(b"one\ntwo\nthree")
    log.end()

    assert read(log, tail_lines=tail) == expected


def test_a_long_line_is_one_line_for_the_tail(log):
    long = b"x" * (3 * LINE_BYTES + 5)
    log.append(b"first\n")
    for part in (long[:7], long[7:], b"\n"):
        log.append(part)

    assert read(log, tail_lines=1) == long + b"\n"
    assert read(log) == b"first\n" + long + b"\n"


def test_times(log, clock):
    log.append(b"one\n")
    clock.moment += timedelta(seconds=10, microseconds=5)
    log.append(b"two\n")

    assert read(log, timestamps=True) == (
        b"2026-01-02T03:04:05.000000000Z one\n2026-01-02T03:04:15.000005000Z two\n"
    )
    assert read(log, since_seconds=10) == b"one\ntwo\n"
    assert read(log, since_seconds=9) == b"two\n"


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, b"o"), (4, b"one\n"), (6, b"one\ntw"), (99, b"one\ntwo\n")]
)
def test_a_limit(log, limit, expected):
    log.append(b"one\ntwo\n")

    assert read(log, limit_bytes=limit) == expected


def test_a_follower_has_every_line_once(log):
    async def follow():
        seen = []

        async def reader():
            async for part in log.read(LogQuery(follow=True, tail_lines=1)):
                seen.append(part)
                if part == b"two\n":
                    log.append(b"three\nfo")
                    log.append(b"ur")
                    log.end()

        log.append(b"one\ntwo\n")
        await asyncio.wait_for(reader(), 5)
        return seen

    assert asyncio.run(follow()) == [b"two\n", b"three\n", b"four"]


def test_a_follower_is_let_go_although_the_pod_goes_on(log):
    async def follow():
        reading = asyncio.create_task(collect())
        await asyncio.sleep(0)
        log.release()
        return await asyncio.wait_for(reading, 5)

    async def collect():
        return [part async for part in log.read(LogQuery(follow=True))]

    log.append(b"one\n")
    assert asyncio.run(follow()) == [b"one\n"]


def test_a_pipe_carries_output_until_its_last_writer_is_gone(log):
    async def carry():
        import os

        pipe = Pipe(log)
        other = os.dup(pipe.write_end)
        os.write(pipe.write_end, b"one\n")
        pipe.close_write_end()
        os.write(other, b"two\n")
        os.close(other)
        await pipe.drain(5)

    asyncio.run(carry())
    assert read(log) == b"one\ntwo\n"


def test_a_pipe_that_somebody_holds_is_left_after_a_while(log):
    async def carry():
        pipe = Pipe(log)
        await pipe.drain(0.01)
        pipe.close_write_end()

    asyncio.run(carry())
    assert read(log) == b""
