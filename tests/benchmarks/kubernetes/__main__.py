# SPDX-License-Identifier: Apache-2.0
"""Run the comparison and print its result: progress on stderr, one line of JSON at the end of stdout."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import environment

os.environ[environment.DATABASE_VARIABLE] = "postgres"
AIRFLOW = environment.prepare()

from tests.benchmarks.kubernetes import ground  # noqa: E402
from tests.benchmarks.kubernetes.ways import WAYS  # noqa: E402
from tests.support import database, services  # noqa: E402
from tests.support.kubernetes_field import write_template  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubernetes.client import CoreV1Api

PODS = 400
WATCHED_PODS = 1000
ROUNDS = 3
"""Each way creates its pods so often, in turns, and the median counts: the machine is rarely quiet."""

CHILD_SECONDS = 600
CLEAR_SECONDS = 20


def main() -> int:
    """Measure everything and print the result.

    :returns: 0, or 2 where a service is missing
    """
    missing = [reason for name in ("redis", "postgres", "kubernetes") if (reason := services.missing(name))]
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 2
    AIRFLOW.create_database()
    try:
        database.migrate()
        with tempfile.TemporaryDirectory() as directory, services.claimed_redis_database() as broker:
            result = _compare(Path(directory), broker)
    finally:
        database.dispose()
        AIRFLOW.drop_database()
        AIRFLOW.remove()
    print(json.dumps(result))
    return 0


def _compare(directory: Path, broker: str) -> dict[str, Any]:
    bench = Bench(ground.connect(), write_template(directory / "pod.yaml"), broker)
    rounds: list[dict[str, dict[str, Any]]] = []
    bare: list[float] = []
    for _ in range(ROUNDS):
        rounds.append({name: bench.create(name) for name in WAYS})
        bare.append(bench.post_bare())
    added = bench.added_memory()

    def middle(key: str) -> dict[str, float]:
        return {name: round(statistics.median(one[name][key] for one in rounds), 1) for name in WAYS}

    return {
        "pods_per_second": {**middle("pods_per_second"), "raw": round(statistics.median(bare), 1)},
        "watch_events_per_second": {name: round(one, 1) for name, one in bench.events.items()},
        "heartbeat_block_ms": middle("heartbeat_block_ms"),
        "processes": middle("processes"),
        "rss_mb": middle("rss_mb"),
        "added_rss_mb_at_1000_pods": {"ours": round(added, 1)},
    }


@dataclass
class Bench:
    """What is measured, each in a namespace of its own.

    :param api: a client of the cluster
    :param template: of pods that nobody runs
    :param broker: URL of the Celery broker
    :param events: watch events per second, by way
    """

    api: CoreV1Api
    template: Path
    broker: str
    events: dict[str, float] = field(default_factory=dict)

    def create(self, name: str) -> dict[str, Any]:
        """Let one way create the pods; the first time, its watcher is measured, too."""
        with self._namespace() as namespace:
            created = self._child("create", name, namespace, str(PODS))
            there = len(self.api.list_namespaced_pod(namespace).items)
            expected = ground.WARM_UP_PODS + PODS
            assert there == expected, f"{name}: {there} pods instead of {expected}"
            if name not in self.events:
                self._watch(name, namespace, created["job_id"])
        return created

    def _watch(self, name: str, namespace: str, job_id: str) -> None:
        finished = ground.finish_pods(self.api, namespace)
        arguments = (namespace, finished.version, str(finished.events), job_id)
        self.events[name] = self._child("watch", name, *arguments)["events"]
        if name == "ours":
            self.events["raw"] = ground.read_watch_bare(self.api, namespace, finished)

    def post_bare(self) -> float:
        """Return how many pods per second bare posts create."""
        with self._namespace() as namespace:
            rate = PODS / ground.post_bare(self.api, namespace, PODS)
        _say(f"raw: create: {rate:.1f}")
        return rate

    def added_memory(self) -> float:
        """Return the MB that pods add to our scheduler by being created and watched."""
        with self._namespace() as namespace:
            return float(self._child("memory", "ours", namespace, str(WATCHED_PODS))["added_mb"])

    @contextmanager
    def _namespace(self) -> Iterator[str]:
        """Yield a namespace; its removal is not to slow down the next measurement."""
        with services.own_namespace() as namespace:
            yield namespace
        deadline = time.monotonic() + CLEAR_SECONDS
        selector = f"metadata.name={namespace}"
        while self.api.list_namespace(field_selector=selector).items and time.monotonic() < deadline:
            time.sleep(0.5)

    def _child(self, what: str, name: str, namespace: str, *arguments: str) -> dict[str, Any]:
        settings = {
            "namespace": namespace,
            "in_cluster": "False",
            "config_file": os.environ["KUBECONFIG"],
            "pod_template_file": str(self.template),
            **WAYS[name].settings,
        }
        own = {f"AIRFLOW__KUBERNETES_EXECUTOR__{key.upper()}": value for key, value in settings.items()}
        run = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.kubernetes.child", what, name, namespace, *arguments],
            env={
                **os.environ,
                **own,
                "AIRFLOW__CELERY__BROKER_URL": self.broker,
                "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
                "PYTHONWARNINGS": "ignore",
            },
            stdout=subprocess.PIPE,
            timeout=CHILD_SECONDS,
            check=True,
            text=True,
        )
        result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        _say(f"{name}: {what}: {result}")
        return result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except pytest.UsageError as exc:
        sys.exit(str(exc))
