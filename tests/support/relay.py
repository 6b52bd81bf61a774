# SPDX-License-Identifier: Apache-2.0
"""A TCP relay in front of a service, which a test cuts, mutes and restores; the address stays the same."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK = 65536


class Relay:
    """The relay; use it as a context manager.

    :param host: of the service
    :param port: of the service
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener: socket.socket | None = None
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._mute_after: bytes | None = None
        self._answers = threading.Event()
        self._answers.set()
        self.port = 0

    def __enter__(self) -> Self:
        self.restore()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.unmute()
        self.cut()

    def restore(self) -> None:
        """Take connections (again)."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def turn_to(self, host: str, port: int) -> None:
        """Lead new connections to another service; those that are open stay where they are."""
        self._target = (host, port)

    def cut(self) -> None:
        """Close every connection, and refuse new ones."""
        with self._lock:
            listener, self._listener = self._listener, None
            sockets, self._sockets = self._sockets, set()
        if listener is not None:
            _close(listener)
        for one in sockets:
            _close(one)

    def mute_after(self, said: str) -> None:
        """Pass on what clients say, and keep back the answers from when one of them has said ``said``."""
        self._mute_after = said.encode()

    def unmute(self) -> None:
        """Pass on answers again, those kept back first."""
        self._mute_after = None
        self._answers.set()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._target)
                with self._lock:
                    if self._listener is not listener:
                        _close(client)
                        _close(server)
                        return
                    self._sockets |= {client, server}
                for source, sink, answers in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=(source, sink, answers), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if answers:
                    self._answers.wait()
                elif self._mute_after is not None and self._mute_after in data:
                    self._answers.clear()
                sink.sendall(data)
        _close(source)
        _close(sink)
        with self._lock:
            self._sockets -= {source, sink}


def _close(one: socket.socket) -> None:
    with suppress(OSError):  # it wakes who waits in accept or recv
        one.shutdown(socket.SHUT_RDWR)
    one.close()
