# SPDX-License-Identifier: Apache-2.0
"""The stack of docker-compose.yml: up from nothing, the tour, a scheduler and a worker killed, and down."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime

import httpx
import pytest

from dispatcher.local.login import Login
from dispatcher.local.ports import free_port
from dispatcher.local.tour.rest import RestApi
from tests.support import breakable_dag
from tests.support.compose import Compose, kill, wait_until

pytestmark = [pytest.mark.needs("docker"), pytest.mark.timeout(1800)]

LOGS = "/opt/airflow/logs"
NOTES = {
    "DISPATCHER_EXAMPLE_JOURNAL": f"{LOGS}/tour.jsonl",
    "DISPATCHER_EXAMPLE_GATE": f"{LOGS}/tour-gate",
}
# By default a dead scheduler's work is looked for every five minutes, and a dead task given up after as long.
IMPATIENT = {
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
}
OVERRIDE = {
    "services": {
        "airflow-worker": {"environment": {**NOTES, "DISPATCHER_EXAMPLE_PLACE": "celery"}},
        "embedded-cluster": {"environment": {**NOTES, "DISPATCHER_EXAMPLE_PLACE": "kubernetes"}},
        "airflow-scheduler": {"environment": IMPATIENT},
    }
}
SERVICES = {
    "airflow-apiserver",
    "airflow-dag-processor",
    "airflow-scheduler",
    "airflow-triggerer",
    "airflow-worker",
    "embedded-cluster",
    "postgres",
    "redis",
}
PROFILES = ([], ["--profile", "flower"], ["--profile", "kubernetes"])
DAG_ID = "breakable"
WORKER_CONCURRENCY = 4


def say(text):
    print(f"{datetime.now(tz=UTC):%H:%M:%S} {text}", flush=True)


@pytest.fixture(scope="module")
def compose(tmp_path_factory):
    project = f"dispatcher-test-{secrets.token_hex(4)}"
    compose = Compose(tmp_path_factory.mktemp("compose") / "checkout", project)
    image = f"{project}:test"
    compose.make_env(AIRFLOW_PORT=str(free_port()), FLOWER_PORT=str(free_port()), IMAGE_NAME=image)
    compose.override(OVERRIDE)
    yield compose
    everything = ["--profile", "flower", "--profile", "kubernetes"]
    compose.run(*everything, "down", "--volumes", "--timeout", "5", check=False)
    subprocess.run(["docker", "image", "rm", "--force", image], capture_output=True, check=False)


@pytest.fixture(scope="module")
def up(compose):
    """The stack, up and healthy; what it took is printed."""
    shutil.copy(breakable_dag.__file__, compose.folder / "dags")
    start = time.monotonic()
    compose.run("build")
    say(f"image built in {time.monotonic() - start:.0f} s")
    start = time.monotonic()
    done = compose.run("up", "--detach", "--wait", check=False)
    if done.returncode:
        logs = compose.run("logs", "--tail", "40", check=False).stdout
        pytest.fail(f"{done.stdout}\n{done.stderr}\n{compose.run('ps', '--all').stdout}\n{logs}")
    say(f"up and healthy in {time.monotonic() - start:.0f} s")
    return compose


@pytest.fixture(scope="module")
def api(up):
    url = f"http://127.0.0.1:{up.secret('AIRFLOW_PORT')}"
    api = RestApi(url, Login("admin", up.secret("ADMIN_PASSWORD")))
    yield api
    api.close()


def test_without_secrets_it_says_what_to_do(tmp_path):
    bare = Compose(tmp_path / "checkout", "dispatcher-test-bare")

    done = bare.run("config", "--quiet", check=False)

    assert done.returncode
    assert re.search(r"required variable \w+ is missing a value: run make env", done.stderr)


@pytest.mark.parametrize("profile", PROFILES, ids=["default", "flower", "kubernetes"])
def test_the_file_is_clean_for_every_profile(compose, profile):
    done = compose.run(*profile, "config", "--quiet")

    assert (done.stdout, done.stderr) == ("", "")


def test_every_service_is_healthy(up):
    containers = up.containers()

    assert {one["Service"]: one["Health"] for one in containers} == dict.fromkeys(SERVICES, "healthy")
    say(f"healthy: {', '.join(sorted(one['Service'] for one in containers))}")
    [queues] = re.findall(
        r" consumes (.+)$", up.exec("airflow-worker", "python", "-m", "workers.health"), re.M
    )
    assert set(queues.split(", ")) == {"callbacks", "default", "standby"}


def test_workers_and_pods_know_no_database_and_no_key(up):
    keys = ("POSTGRES_PASSWORD", "API_SECRET_KEY", "JWT_SECRET", "FERNET_KEY", "ADMIN_PASSWORD")
    for service in ("airflow-worker", "embedded-cluster"):
        environment = up.exec(service, "env")
        assert not [name for name in keys if up.secret(name) in environment]


def test_the_tour_comes_out_as_it_must(up, tmp_path):
    log = tmp_path / "worker.log"
    script = (
        'umask 077; printf \'{"admin": "%s"}\' "$ADMIN_PASSWORD" >/tmp/passwords.json; '
        "exec python -m dispatcher.local.tour --worker-log /tour/worker.log"
    )
    settings = {
        **NOTES,
        "ADMIN_PASSWORD": up.secret("ADMIN_PASSWORD"),
        "AIRFLOW__API__BASE_URL": "http://airflow-apiserver:8080",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": "/tmp/passwords.json",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    options = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    tmp_path.chmod(0o755)
    follower = up.follow_logs("airflow-worker", log)
    try:
        command = ["run", "--rm", "--no-deps", "-T", *options, "--volume", f"{tmp_path}:/tour:ro"]
        done = up.run(*command, "airflow-scheduler", "bash", "-c", script, check=False)
    finally:
        follower.terminate()
        follower.wait()

    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"refused: (\w+)", done.stdout) == [
        "launch_superseded",
        "launch_superseded",
        "launch_consumed",
    ]


def entries(up):
    """What the tasks noted: began or ended, task, map index, try."""
    done = up.run("exec", "-T", "airflow-apiserver", "cat", str(breakable_dag.JOURNAL), check=False)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def running(up, task_id):
    noted = entries(up)
    return {one[1:] for one in noted if one[:2] == ("began", task_id)} - {
        one[1:] for one in noted if one[0] == "ended"
    }


def launches(up):
    options = ["--dag-id", DAG_ID, "--limit", "200", "--output", "json"]
    return json.loads(up.exec("airflow-apiserver", "airflow", "dispatcher", "launches", "list", *options))


def states(up):
    return dict(Counter(one["state"] for one in launches(up)))


def test_nothing_is_lost_or_run_twice_when_a_scheduler_and_a_worker_are_killed(up, api):
    scale = ["up", "--detach", "--wait", "--no-recreate", "--scale", "airflow-scheduler=2"]
    up.run(*scale)
    schedulers = [one["Name"] for one in up.containers("airflow-scheduler")]
    assert len(schedulers) == 2
    say(f"two schedulers are healthy: {', '.join(schedulers)}")
    wait_until("the DAG to be parsed", lambda: api.knows(DAG_ID), 120)
    api.unpause(DAG_ID)
    api.trigger(DAG_ID, "breakage")
    wait_until("the worker to be full", lambda: len(running(up, "on_celery")) == WORKER_CONCURRENCY, 300)
    wait_until("the pods to run", lambda: len(running(up, "in_pods")) == breakable_dag.IN_PODS, 300)

    say(f"the worker is full and the pods run; launches: {states(up)}")
    kill(schedulers[0])
    say(f"killed {schedulers[0]}")
    up.run(*scale)
    say(f"replaced: {', '.join(one['Name'] for one in up.containers('airflow-scheduler'))}")

    [worker] = [one["Name"] for one in up.containers("airflow-worker")]
    lost = running(up, "on_celery")
    kill(worker)
    say(f"killed {worker}, which ran {len(lost)} tasks")
    up.run(*scale)
    say(f"replaced; launches: {states(up)}")
    up.exec("airflow-apiserver", "touch", str(breakable_dag.GATE))

    wait_until("the run to end", lambda: api.run_state(DAG_ID, "breakage") in {"success", "failed"}, 600)
    assert api.run_state(DAG_ID, "breakage") == "success"
    wait_until("every launch to end", lambda: all(one["ended"] for one in launches(up)), 180)
    noted = Counter(entries(up))
    assert set(noted.values()) == {1}, "a body ran twice in one try"
    ended = Counter(one[1:3] for one in noted if one[0] == "ended")
    assert len(ended) == breakable_dag.ON_CELERY + breakable_dag.IN_PODS
    assert set(ended.values()) == {1}, "a task was finished twice"
    retried = {one[1:3] for one in noted if one[0] == "began" and one[3] > 1}
    assert retried == {one[:2] for one in lost}, (
        "a task is retried if and only if it ran on the killed worker"
    )
    say(f"the run succeeded: {len(ended)} tasks, each finished once, {len(retried)} of them in a second try")
    say(f"launches: {states(up)}")


def test_flower_is_a_profile(up):
    up.run("--profile", "flower", "up", "--detach", "--wait", "--no-recreate", "flower")
    url = f"http://127.0.0.1:{up.secret('FLOWER_PORT')}/"

    assert httpx.get(url, timeout=30).status_code == 401
    answer = httpx.get(url, auth=("admin", up.secret("ADMIN_PASSWORD")), timeout=30, follow_redirects=True)
    assert answer.status_code == 200
    say("flower answers with the password, and not without")


def test_down_leaves_nothing(up):
    assert up.left()

    up.run("--profile", "flower", "down", "--volumes")

    assert up.left() == []
    say("down; no container, volume or network is left")
