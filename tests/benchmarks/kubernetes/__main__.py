# SPDX-License-Identifier: Apache-2.0
"""Run the comparison and print its result: progress on stderr, one line of JSON at the end of stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import environment

os.environ[environment.DATABASE_VARIABLE] = "postgres"
AIRFLOW = environment.prepare()

from tests.benchmarks.kubernetes import ground  # noqa: E402
from tests.benchmarks.kubernetes.ways import WAYS  # noqa: E402
from tests.support import database, services  # noqa: E402
from tests.support.kubernetes_field import write_template  # noqa: E402

PODS = 400
WATCHED_PODS = 1000
CHILD_SECONDS = 600


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
    template = write_template(directory / "pod.yaml")
    api = ground.connect()
    created: dict[str, dict[str, Any]] = {}
    events: dict[str, float] = {}
    for name, way in WAYS.items():
        with services.own_namespace() as namespace:
            settings = {
                "namespace": namespace,
                "in_cluster": "False",
                "config_file": os.environ["KUBECONFIG"],
                "pod_template_file": str(template),
                **way.settings,
            }
            created[name] = _child("create", name, settings, broker, namespace, str(PODS))
            there = len(api.list_namespaced_pod(namespace).items)
            expected = ground.WARM_UP_PODS + PODS
            assert there == expected, f"{name}: {there} pods instead of {expected}"
            finished = ground.finish_pods(api, namespace)
            watched = _child(
                "watch", name, settings, broker, namespace, finished.version, str(finished.events),
                created[name]["job_id"],
            )  # fmt: skip
            events[name] = watched["events"]
            if name == "ours":
                events["raw"] = ground.read_watch_bare(api, namespace, finished)
    with services.own_namespace() as namespace:
        _say("raw: bare posts")
        bare = PODS / ground.post_bare(api, namespace, PODS)
    with services.own_namespace() as namespace:
        added = _child(
            "memory", "ours", {**settings, "namespace": namespace}, broker, namespace, str(WATCHED_PODS)
        )
    result = {
        key: {name: round(one[key], 1) for name, one in created.items()}
        for key in ("pods_per_second", "heartbeat_block_ms", "processes", "rss_mb")
    }
    result["pods_per_second"]["raw"] = round(bare, 1)
    result["watch_events_per_second"] = {name: round(one, 1) for name, one in events.items()}
    result["added_rss_mb_at_1000_pods"] = {"ours": round(added["added_mb"], 1)}
    return result


def _child(what: str, name: str, settings: dict[str, str], broker: str, *arguments: str) -> dict[str, Any]:
    own = {f"AIRFLOW__KUBERNETES_EXECUTOR__{key.upper()}": value for key, value in settings.items()}
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.kubernetes.child", what, name, *arguments],
        env={
            **os.environ,
            **own,
            "AIRFLOW__CELERY__BROKER_URL": broker,
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
