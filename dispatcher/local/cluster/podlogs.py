# SPDX-License-Identifier: Apache-2.0
"""The output of a pod: one file with the time of each line, and readers that may follow it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dispatcher.local.cluster.notify import Notifier

LINE_BYTES = 16 * 1024
"""A longer line is kept in parts, each with a time of its own."""

READ_BYTES = 64 * 1024

_WHOLE, _PART = b"F", b"P"
_HEAD_FIELDS = 2


@dataclass(frozen=True)
class LogQuery:
    """What a reader asks for.

    :param follow: go on until the pod ends.
    :param tail_lines: only so many lines from the end; all when absent.
    :param since_seconds: only lines that are at most so old; all when absent.
    :param timestamps: begin each line with its time.
    :param limit_bytes: stop after so many bytes; never when absent.
    """

    follow: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


@dataclass(frozen=True)
class _Line:
    time: str
    text: bytes
    whole: bool

    def shown(self, timestamps: bool) -> bytes:
        head = f"{self.time} ".encode() if timestamps else b""
        return head + self.text + (b"\n" if self.whole else b"")


class Pipe:
    """A pipe whose output goes to a log; the write end is for the processes of a pod.

    :param log: where the output goes.
    """

    def __init__(self, log: PodLog) -> None:
        self._log = log
        self._read_end, self._write_end = os.pipe()
        self._drained = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._read)

    @property
    def write_end(self) -> int:
        """Return the file descriptor that processes write to."""
        return self._write_end

    def close_write_end(self) -> None:
        """Leave the write end to the processes, so that the pipe ends with the last of them."""
        os.close(self._write_end)

    async def drain(self, seconds: float) -> None:
        """Wait until the last process has closed the pipe, and close it.

        :param seconds: how long to wait at most; a process outside the pod may hold the pipe.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), seconds)
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)

    def _read(self) -> None:
        if output := os.read(self._read_end, READ_BYTES):
            self._log.append(output)
        else:
            self._loop.remove_reader(self._read_end)
            self._drained.set()


class PodLog:
    """The log file of one pod.

    :param path: the file; it is made at the first line.
    :param clock: tells the time, with a time zone.
    """

    def __init__(self, path: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._clock = clock
        self._notifier = Notifier()
        self._unfinished = b""
        self._ended = False
        self._released = False

    def append(self, output: bytes) -> None:
        """Add output; a line is kept once it is complete or too long."""
        *lines, rest = (self._unfinished + output).split(b"\n")
        parts = [(line, True) for line in lines]
        while len(rest) >= LINE_BYTES:
            parts.append((rest[:LINE_BYTES], False))
            rest = rest[LINE_BYTES:]
        self._unfinished = rest
        self._write(parts)

    def end(self) -> None:
        """Add what is left of an unfinished line, and let readers who follow come to an end."""
        if self._unfinished:
            self._write([(self._unfinished, False)])
            self._unfinished = b""
        self._ended = True
        self._notifier.notify()

    def release(self) -> None:
        """Let readers who follow come to an end now, although the pod goes on."""
        self._released = True
        self._notifier.notify()

    async def read(self, query: LogQuery) -> AsyncIterator[bytes]:
        """Yield what a reader asked for, as text lines."""
        left = query.limit_bytes
        position, lines = self._lines(0)
        chosen = _choose(lines, query, self._clock())
        while True:
            for line in chosen:
                shown = line.shown(query.timestamps)[:left]
                yield shown
                if left is not None:
                    left -= len(shown)
                    if left <= 0:
                        return
            if not query.follow or self._released:
                return
            position, chosen = self._lines(position)
            if not chosen:
                if self._ended:
                    return
                await self._notifier.wait()

    def _write(self, parts: list[tuple[bytes, bool]]) -> None:
        if not parts:
            return
        now = self._clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
        with self._path.open("ab") as file:
            for text, whole in parts:
                file.write(b"%b %b %b\n" % (now, _WHOLE if whole else _PART, text))
        self._notifier.notify()

    def _lines(self, position: int) -> tuple[int, list[_Line]]:
        """Return the lines from a position of the file on, and the position after them."""
        if not self._path.exists():
            return 0, []
        with self._path.open("rb") as file:
            file.seek(position)
            content = file.read()
        return position + len(content), list(_parsed(content))


def _parsed(content: bytes) -> Iterator[_Line]:
    for record in content.split(b"\n")[:-1]:
        time, tag, text = record.split(b" ", _HEAD_FIELDS)
        yield _Line(time.decode(), text, tag == _WHOLE)


def _choose(lines: list[_Line], query: LogQuery, now: datetime) -> list[_Line]:
    if query.since_seconds is not None:
        oldest = (now.astimezone(UTC) - timedelta(seconds=query.since_seconds)).strftime("%Y-%m-%dT%H:%M:%S")
        lines = [line for line in lines if line.time >= oldest]
    if query.tail_lines is None:
        return lines
    starts = [number for number in range(len(lines)) if number == 0 or lines[number - 1].whole]
    wanted = starts[-query.tail_lines :] if query.tail_lines else []
    return lines[wanted[0] :] if wanted else []
