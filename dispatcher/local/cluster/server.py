# SPDX-License-Identifier: Apache-2.0
"""The parts of the cluster put together, and served until the process is asked to end."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvicorn

from dispatcher.local.cluster import app, kubeconfig
from dispatcher.local.cluster.deletion import Deletions
from dispatcher.local.cluster.kubelet import Kubelet
from dispatcher.local.cluster.notify import Notifier
from dispatcher.local.cluster.objects import Objects
from dispatcher.local.cluster.resources import NAMESPACES
from dispatcher.local.cluster.store import Store
from dispatcher.local.cluster.watch import Watches

log = logging.getLogger(__name__)

FIRST_NAMESPACES = ("default",)
KEEP_ALIVE_SECONDS = 120
OPEN_REQUESTS_SECONDS = 3
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Options:
    """How a cluster is run.

    :param host: address to listen on.
    :param port: port to listen on; 0 takes a free one.
    :param kubeconfig: file that is written for clients.
    :param max_running: pods that run at the same time.
    :param history: changes that watches can go back, per resource.
    :param bookmark_seconds: time between two bookmarks of a watch.
    :param expired_watch: how a watch from a forgotten version is refused (see ``app.Handlers``).
    """

    host: str
    port: int
    kubeconfig: Path
    max_running: int
    history: int
    bookmark_seconds: float
    expired_watch: Literal["event", "status"]


async def serve(options: Options, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; at the end every process of a pod has ended.

    :param on_ready: called with the address once the kubeconfig is written and connections are taken.
    :raises OSError: the address cannot be listened on, or the kubeconfig cannot be written.
    """
    notifier = Notifier()
    store = Store(history=options.history, on_change=notifier.notify)
    deletions = Deletions(store)
    kubelet = Kubelet(
        store, notifier, deletions, max_running=options.max_running, environment=dict(os.environ)
    )
    # A client reads the kubeconfig once: the token of the time before lets it in again after a restart.
    token = kubeconfig.token_in(options.kubeconfig) or secrets.token_urlsafe(32)
    listening = _listen(options.host, options.port)
    server: uvicorn.Server

    def closing() -> bool:
        return server.should_exit

    watches = Watches(store, notifier, closing, options.bookmark_seconds)
    handlers = app.Handlers(Objects(store, deletions), watches, kubelet, options.expired_watch)
    server = uvicorn.Server(_server_config(app.build(handlers, token)))
    for name in FIRST_NAMESPACES:
        namespace = {"metadata": {"name": name}}
        NAMESPACES.prepare_create(namespace)
        store.create(NAMESPACES.plural, namespace)
    url = f"http://{options.host}:{listening.getsockname()[1]}"
    kubeconfig.write(options.kubeconfig, url, token)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(kubelet.running())
        await stack.enter_async_context(_background(_collect(store, notifier, deletions)))
        await stack.enter_async_context(_background(_end_streams(notifier, kubelet, closing)))
        on_ready(url)
        await server.serve(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections.

    The protocol is named: asyncio switches delayed sending off only where it is, and an answer in two parts
    would else wait for the client's acknowledgement, some 40 ms.
    """
    family, kind, protocol, _name, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def _server_config(application: Any) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=OPEN_REQUESTS_SECONDS,
    )


async def _collect(store: Store, notifier: Notifier, deletions: Deletions) -> None:
    """Take away, after every change, what owners and namespaces left behind."""
    seen = -1
    while True:
        while seen != store.version:
            seen = store.version
            deletions.collect()
        await notifier.wait()


async def _end_streams(notifier: Notifier, kubelet: Kubelet, closing: Callable[[], bool]) -> None:
    """End open watches and followed logs when the server ends: it waits for them."""
    while not closing():  # noqa: ASYNC110 - uvicorn tells by a flag alone
        await asyncio.sleep(_POLL_SECONDS)
    notifier.notify()
    kubelet.release_readers()


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do some work while the context is open."""
    task = asyncio.create_task(work)
    task.add_done_callback(_report)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a part of the cluster failed", exc_info=error)
