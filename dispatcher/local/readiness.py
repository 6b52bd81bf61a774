# SPDX-License-Identifier: Apache-2.0
"""How the stack sees that a component is ready: by its ready line, by its health, by an answer."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from dispatcher.local.processes import ChildProcess

ANSWER_SECONDS = 5.0
BUILD_SECONDS = 60.0
PING_SECONDS = 1.0

HEALTHY = "healthy"
_READY_LINE = re.compile(r"^embedded \w+ ready at (?P<address>\S+)$", re.MULTILINE)


def address_in_ready_line(child: ChildProcess) -> str | None:
    """Return the address that an embedded service printed when it was ready; None before."""
    found = _READY_LINE.search(child.output())
    return found["address"] if found else None


def answers(api_url: str) -> bool:
    """Say whether the API server answers, users as well as workers.

    :param api_url: its address, without a slash at the end
    """
    return bool(_health(api_url)) and _serves_workers(api_url)


def heart_beats(api_url: str, component: str) -> bool:
    """Say whether the API server knows a component of Airflow to be healthy.

    :param api_url: its address, without a slash at the end
    :param component: ``scheduler``, ``triggerer`` or ``dag_processor``
    """
    return bool(_health(api_url).get(component, {}).get("status") == HEALTHY)


def worker_answers(broker_url: str) -> bool:
    """Say whether a Celery worker answers a ping.

    :param broker_url: address of the broker
    """
    return bool(_control(broker_url).ping(timeout=PING_SECONDS, limit=1))


def _serves_workers(api_url: str) -> bool:
    # The first call of the execution API builds its routes, which takes seconds: better now than at a claim.
    try:
        return httpx.get(f"{api_url}/execution/health", timeout=BUILD_SECONDS).is_success
    except httpx.HTTPError:
        return False


def _health(api_url: str) -> dict[str, Any]:
    try:
        answer = httpx.get(f"{api_url}/api/v2/monitor/health", timeout=ANSWER_SECONDS)
        return dict(answer.raise_for_status().json())
    except httpx.HTTPError:
        return {}


@cache
def _control(broker_url: str) -> Any:
    from celery import Celery

    return Celery("dispatcher.local", broker=broker_url, set_as_current=False).control
