# SPDX-License-Identifier: Apache-2.0
"""Run the comparison and print its result: progress on stderr, one line of JSON at the end of stdout."""

from __future__ import annotations

import json
import os
import sys
from statistics import median
from typing import Any

import pytest

from tests.support import environment

os.environ[environment.DATABASE_VARIABLE] = "postgres"
AIRFLOW = environment.prepare()

from tests.benchmarks.running import anything_missing, measure, migrated, rounded  # noqa: E402
from tests.support import services  # noqa: E402

CHILD = "tests.benchmarks.celery.child"
WAYS = ("stock", "ours")
FEW, MANY = 200, 2_000
WATCHED = (1_000, 10_000)
SENDS = 50_000
ROUNDS = 3
"""Runs of each measurement of publishing; the median counts."""


def main() -> int:
    """Measure everything and print the result.

    :returns: 0, or 2 where a service is missing
    """
    if anything_missing("redis", "postgres"):
        return 2
    with migrated(AIRFLOW), services.claimed_redis_database() as broker:
        print(json.dumps(_compare(broker)))
    return 0


def _compare(broker: str) -> dict[str, Any]:
    found: dict[str, dict[str, float]] = {}

    def note(key: str, way: str, value: float) -> None:
        found.setdefault(key, {})[way] = value

    for count in (FEW, MANY):
        # In turns, so that what else the machine does falls on all.
        rounds = [{way: _child(broker, "publish", way, count) for way in WAYS} for _ in range(ROUNDS)]
        for way in WAYS:
            note(f"publish_{count}_per_second", way, median(one[way]["per_second"] for one in rounds))
            note("heartbeat_block_ms", way, median(one[way]["longest_ms"] for one in rounds))
    for way in WAYS:
        for count in WATCHED:
            watched = _child(broker, "watch", way, count)
            note(f"sync_{count}_ms", way, watched["idle_ms"])
        note("sync_10000_100_done_ms", way, watched["done_ms"])
        note("rss_mb", way, watched["rss_mb"])
    for count in (FEW, MANY):
        note(f"publish_{count}_per_second", "raw", _child(broker, "raw", "raw", count)["per_second"])
    # Shown as progress: what it may grow by is asserted there.
    _child(broker, "growth", "ours", SENDS)
    return {key: rounded(values) for key, values in found.items()}


def _child(broker: str, what: str, way: str, count: int) -> dict[str, Any]:
    services.flush_redis_database(broker)
    return measure(
        CHILD,
        what,
        way,
        str(count),
        AIRFLOW__CELERY__BROKER_URL=broker,
        AIRFLOW__CELERY__RESULT_BACKEND=broker,
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except pytest.UsageError as exc:
        sys.exit(str(exc))
