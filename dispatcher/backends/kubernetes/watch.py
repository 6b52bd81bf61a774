# SPDX-License-Identifier: Apache-2.0
"""Watching the pods of one scope: list, then watch from there, and go on from the last event seen.

A watch that ends, is cut (in the middle of a line, too) or falls silent is taken up from the last resource
version, so that no event is lost; one whose version is too old begins with a new list. A list every few
minutes closes any gap that remains.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from urllib3.exceptions import HTTPError

from dispatcher.backends.kubernetes.endings import classify_pod
from dispatcher.backends.kubernetes.errors import ExpiredError, classify
from dispatcher.backends.kubernetes.identity import read_identity, read_sender
from dispatcher.backends.kubernetes.pods import WORKLOAD_VOLUME
from dispatcher.backends.kubernetes.waiting import read_waiting
from dispatcher.domain.errors import BackendError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dispatcher.backends.kubernetes.client import Cluster
    from dispatcher.backends.kubernetes.options import Scope, WatchTimes
    from dispatcher.backends.kubernetes.table import PodTable

log = logging.getLogger(__name__)

_CHUNK = 64 * 1024


class PodWatcher(threading.Thread):
    """Keeps the table informed about the pods of one scope.

    :param cluster: where
    :param scope: a namespace, or None for all
    :param selector: label selector of the deployment's pods
    :param table: is told
    :param times: time-outs and pauses
    """

    def __init__(
        self, cluster: Cluster, scope: Scope, selector: str, table: PodTable, times: WatchTimes
    ) -> None:
        super().__init__(name=f"pod-watcher-{scope or 'all'}", daemon=True)
        self._cluster = cluster
        self._scope = scope
        self._selector = selector
        self._table = table
        self._times = times
        self._stopping = threading.Event()
        self._response: Any = None
        self._response_lock = threading.Lock()
        self._failures = 0
        self._listed_at = 0.0
        self._strangers: set[str] = set()

    def stop(self) -> None:
        """Tell the thread to end, and end the read it waits in; does not wait for it."""
        self._stopping.set()
        with self._response_lock:
            if self._response is not None:
                _hang_up(self._response)

    def run(self) -> None:
        """List and watch until told to stop; whatever happens is logged and tried again."""
        version: str | None = None
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                if version is None or time.monotonic() - self._listed_at > self._times.relist:
                    version = self._list()
                version = self._follow(version)
            except ExpiredError:
                log.debug("The watch of %s is too old; listing again", self._where)
                version = None
            except BackendError as exc:
                self._pause(exc)
            except Exception:
                log.exception("Watching %s failed", self._where)
                version = None
                self._pause(None)
            self._stopping.wait(max(0.0, self._times.shortest_round - (time.monotonic() - started)))

    @property
    def _where(self) -> str:
        return f"namespace {self._scope}" if self._scope else "all namespaces"

    def _list(self) -> str:
        begun = time.monotonic()
        before = self._table.existing(self._scope)
        places: set[str] = set()
        version = ""
        for pods, listed_at in self._cluster.pod_pages(self._scope, self._selector):
            version = listed_at
            places.update(place for pod in pods if (place := self._take(pod, deleted=False)))
        self._table.listed(self._scope, before, places, begun=begun)
        self._listed_at = time.monotonic()
        self._recovered()
        return version

    def _follow(self, version: str) -> str:
        """Watch until the watch ends, and return the version to go on from.

        :raises ExpiredError: the version is too old
        :raises BackendError: the server answered with another error
        """
        response = self._cluster.watch_pods(
            self._scope,
            self._selector,
            version,
            seconds=self._times.watch,
            silence=self._times.silence,
            connect=self._times.connect,
        )
        if not self._hold(response):
            return version
        try:
            for event in _events(response):
                version = self._heed(event, version)
                self._recovered()
        except (HTTPError, OSError, ValueError) as exc:
            log.debug("The watch of %s ended: %s", self._where, classify(exc))
        finally:
            self._hold(None)
            response.close()
        return version

    def _hold(self, response: Any) -> bool:
        """Let ``stop`` end the reading of a response; False if it was called already."""
        with self._response_lock:
            self._response = response
            if response is not None and self._stopping.is_set():
                response.close()
                self._response = None
                return False
        return True

    def _heed(self, event: Mapping[str, Any], version: str) -> str:
        kind, thing = event["type"], event["object"]
        if kind == "ERROR":
            if thing.get("code") == HTTPStatus.GONE:
                raise ExpiredError(str(thing.get("message")))
            raise RetryableError(f"the watch ended with an error: {thing.get('message')}")
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._take(thing, deleted=kind == "DELETED")
        return str((thing.get("metadata") or {}).get("resourceVersion") or version)

    def _take(self, pod: Mapping[str, Any], *, deleted: bool) -> str | None:
        identity = read_identity(pod)
        if identity is None:
            self._warn_of(pod)
            return None
        ending = classify_pod(pod, deleted=deleted)
        self._table.seen(
            identity,
            ending,
            deleted=deleted,
            secret=_has_secret(pod),
            waiting=read_waiting(pod),
            sender=read_sender(pod),
        )
        return identity.external_id

    def _warn_of(self, pod: Mapping[str, Any]) -> None:
        metadata = pod.get("metadata") or {}
        name = f"{metadata.get('namespace')}/{metadata.get('name')}"
        if name not in self._strangers:
            self._strangers.add(name)
            log.warning("Pod %s has our labels but does not say what it is; it is left alone", name)

    def _pause(self, exc: BackendError | None) -> None:
        self._failures += 1
        if exc is not None:
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            log.log(level, "Pods of %s are not seen at the moment: %s", self._where, exc)
        pause = min(self._times.first_pause * 2 ** min(self._failures - 1, 10), self._times.longest_pause)
        self._stopping.wait(max(pause, (exc.retry_after if exc else None) or 0.0))

    def _recovered(self) -> None:
        if self._failures:
            log.info("Pods of %s are seen again", self._where)
        self._failures = 0


def _events(response: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a watch: one JSON object per line. A line that was cut off is left out."""
    rest = b""
    for chunk in response.stream(_CHUNK, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _hang_up(response: Any) -> None:
    try:
        response.shutdown()
    except (OSError, RuntimeError, ValueError):
        # It has ended by itself.
        return


def _has_secret(pod: Mapping[str, Any]) -> bool:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return any(volume.get("name") == WORKLOAD_VOLUME for volume in volumes)
