# SPDX-License-Identifier: Apache-2.0
"""The log of a pod while it runs, and what people are told where there is none."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow.utils.log.logging_mixin import remove_escape_codes
from urllib3.exceptions import HTTPError

from dispatcher.backends.kubernetes.diagnosis import BASE_CONTAINER
from dispatcher.backends.kubernetes.errors import BadRequestError, ForbiddenError, NotFoundError
from dispatcher.backends.kubernetes.identity import split_external_id
from dispatcher.domain.errors import DispatcherError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from dispatcher.backends.kubernetes.access import ClusterAccess

Log = tuple[list[str], "list[Generator[str, None, None]]"]
"""Messages for people, and streams of lines: as Airflow's ``StreamingLogResponse``."""


def open_log(access: ClusterAccess, external_id: str) -> Log:
    """Return the last lines that the container ``base`` of a pod wrote, to be read as they come.

    :param access: the cluster
    :param external_id: namespace/pod
    """
    lines = access.options.log_lines
    namespace, name = split_external_id(external_id)
    try:
        response = access.cluster.open_log(namespace, name, lines)
    except DispatcherError as exc:
        return no_log(external_id, exc)
    read = _lines_of(response)
    first = next(read, None)
    if first is None:
        return [f"Container {BASE_CONTAINER} of pod {external_id} has not written a log yet"], []
    message = f"The last {lines} lines of container {BASE_CONTAINER} of pod {external_id}"
    return [message], [_stream(chain([first], read))]


def no_log(external_id: str, exc: DispatcherError) -> Log:
    """Return the words for a log that cannot be had, and no stream.

    :param external_id: namespace/pod
    :param exc: why
    """
    if isinstance(exc, NotFoundError):
        words = (
            f"Pod {external_id} is gone, and what it wrote with it, unless [logging] remote_logging keeps "
            f"the logs of tasks: {exc}"
        )
    elif isinstance(exc, ForbiddenError):
        words = f"The log of pod {external_id} may not be read here: {exc}; grant `get` on `pods/log`"
    elif isinstance(exc, BadRequestError):
        words = f"Container {BASE_CONTAINER} of pod {external_id} has no log yet: {exc}"
    else:
        words = f"The log of pod {external_id} cannot be read at the moment: {exc}"
    return [words], []


def _stream(lines: Iterable[str]) -> Generator[str, None, None]:
    yield from lines


def _lines_of(response: Any) -> Iterator[str]:
    """Yield the lines of an answer; where the connection breaks, the last one says so."""
    try:
        for line in response:
            yield remove_escape_codes(line.decode(errors="replace").rstrip("\r\n"))
    except (HTTPError, OSError) as exc:
        yield f"The log breaks off here: {type(exc).__name__}"
    finally:
        response.close()
