# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster as a process: how it starts, how many pods run, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.clusters import NOW, Cluster, connected, embedded_cluster, refusal, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "dispatcher.local.cluster"

# Prints its own id and that of a child which left the session, and so the process group, of the pod.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def shared_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the kubeconfig of a cluster that runs two pods at the same time."""
    directory = tmp_path_factory.mktemp("cluster")
    with embedded_cluster(directory, "--max-running", "2") as (kubeconfig, _process):
        yield kubeconfig


@pytest.fixture
def cluster(shared_kubeconfig: Path) -> Iterator[Cluster]:
    """Yield that cluster with a namespace of the test's own; its pods are gone before the next test."""
    with connected(shared_kubeconfig, embedded=True) as cluster:
        yield cluster


def start(cluster: Cluster, name: str, *command: str, **spec: Any) -> None:
    body = deepcopy(cluster.pod_template)
    body["metadata"] = {"name": name}
    body["spec"] |= spec
    body["spec"]["containers"][0]["command"] = list(command)
    cluster.http.post(cluster.path("pods"), json=body).raise_for_status()


def phase(cluster: Cluster, name: str) -> str:
    return cluster.http.get(cluster.path("pods", name)).json()["status"]["phase"]


def log(cluster: Cluster, name: str) -> str:
    return cluster.http.get(cluster.path("pods", name, "log")).text


def family(cluster: Cluster, name: str, seconds: str) -> list[int]:
    """Start a pod with a child that left its process group, and return the ids of both processes."""
    start(cluster, name, "python", "-c", FAMILY, seconds)
    wait_for(lambda: phase(cluster, name) != "Pending" and log(cluster, name).endswith("\n"))
    return [int(word) for word in log(cluster, name).split()]


def alive(process: int) -> bool:
    """Say whether a process runs; one that ended and waits for its parent to notice does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system has no /proc")


def test_its_kubeconfig_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    with embedded_cluster(tmp_path) as (kubeconfig, _process):
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
        assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_kubeconfig_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.touch(mode=0o644)
    with embedded_cluster(tmp_path, "--kubeconfig", str(path)):
        assert path.stat().st_mode & 0o777 == 0o600


def test_every_cluster_has_a_token_of_its_own(tmp_path: Path) -> None:
    with embedded_cluster(tmp_path) as (one, _), embedded_cluster(tmp_path) as (other, _):
        tokens = [path.read_text().split('"token": "')[1].split('"')[0] for path in (one, other)]
        assert tokens[0] != tokens[1]
        assert all(len(token) > 20 for token in tokens)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}])
def test_nobody_gets_in_without_the_token(cluster: Cluster, headers: dict[str, str]) -> None:
    with httpx.Client(base_url=cluster.http.base_url, headers=headers) as stranger:
        for path in (cluster.path("pods"), "/api", "/nonesuch"):
            refusal(stranger.get(path), 401, "Unauthorized")
        assert stranger.get("/healthz").text == "ok"


def test_so_many_pods_run_and_the_others_wait_for_their_turn(cluster: Cluster) -> None:
    for name in ("d", "c", "b", "a"):
        start(cluster, name, "sleep", "60")
    wait_for(
        lambda: [phase(cluster, name) for name in "dcba"] == ["Running", "Running", "Pending", "Pending"]
    )
    assert "nodeName" not in cluster.http.get(cluster.path("pods", "b")).json()["spec"]
    cluster.http.delete(cluster.path("pods", "d"), params=NOW)
    wait_for(lambda: [phase(cluster, name) for name in "cba"] == ["Running", "Running", "Pending"])
    # One that waits is deleted without ever having run.
    cluster.http.delete(cluster.path("pods", "a"))
    refusal(cluster.http.get(cluster.path("pods", "a")), 404, "NotFound")


def test_a_pod_sees_the_environment_and_the_interpreter_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED", "from the cluster")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    script = "import os, sys; print(sys.executable, os.environ['INHERITED'], os.getcwd(), sep='\\n')"
    with (
        embedded_cluster(tmp_path) as (kubeconfig, _process),
        connected(kubeconfig, embedded=True) as cluster,
    ):
        start(cluster, "direct", "python", "-c", script)
        start(cluster, "by-path", "sh", "-c", "command -v python")
        wait_for(lambda: [phase(cluster, name) for name in ("direct", "by-path")] == ["Succeeded"] * 2)
        assert log(cluster, "direct").splitlines() == [sys.executable, "from the cluster", str(tmp_path)]
        assert Path(log(cluster, "by-path").strip()).parent == Path(sys.executable).parent


def test_a_program_without_a_command_is_the_first_argument(cluster: Cluster) -> None:
    body = deepcopy(cluster.pod_template)
    body["metadata"] = {"name": "args"}
    body["spec"]["containers"] = [
        {"name": "sidecar", "image": "none", "args": ["false"]},
        {"name": "base", "image": "none", "args": ["python", "-c", "print('ran')"]},
    ]
    cluster.http.post(cluster.path("pods"), json=body).raise_for_status()
    wait_for(lambda: phase(cluster, "args") == "Succeeded")
    assert log(cluster, "args") == "ran\n"
    other = cluster.http.get(cluster.path("pods", "args", "log"), params={"container": "sidecar"})
    assert (other.status_code, other.text) == (200, "")


def test_a_pod_that_would_be_restarted_is_not_run(cluster: Cluster) -> None:
    start(cluster, "again", "true", restartPolicy="OnFailure")

    def refused() -> str:
        conditions = cluster.http.get(cluster.path("pods", "again")).json()["status"].get("conditions", [])
        return conditions[0]["message"] if conditions else ""

    assert "restartPolicy Never" in wait_for(refused)
    assert phase(cluster, "again") == "Pending"


def test_a_signal_is_an_exit_code_over_128(cluster: Cluster) -> None:
    start(cluster, "killed", "python", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    wait_for(lambda: phase(cluster, "killed") == "Failed")
    (container,) = cluster.http.get(cluster.path("pods", "killed")).json()["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 137


def test_an_argument_that_the_system_does_not_take_fails_the_pod(cluster: Cluster) -> None:
    start(cluster, "long", "true", "x" * 200_000)
    wait_for(lambda: phase(cluster, "long") == "Failed")
    (container,) = cluster.http.get(cluster.path("pods", "long")).json()["status"]["containerStatuses"]
    assert "too long" in container["state"]["terminated"]["message"]


def test_a_volume_of_an_unserved_kind_keeps_the_pod_waiting(cluster: Cluster) -> None:
    body = deepcopy(cluster.pod_template)
    body["metadata"] = {"name": "claims"}
    body["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    body["spec"]["containers"][0] |= {"command": ["true"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    cluster.http.post(cluster.path("pods"), json=body).raise_for_status()
    query = {"fieldSelector": "involvedObject.name=claims,reason=FailedMount"}
    found = wait_for(lambda: cluster.http.get(cluster.path("events"), params=query).json()["items"])
    assert "persistentVolumeClaim" in found[0]["message"]
    assert phase(cluster, "claims") == "Pending"


@needs_proc
def test_the_end_of_a_pod_is_the_end_of_all_its_processes(cluster: Cluster) -> None:
    first, child = family(cluster, "ends", "0")
    wait_for(lambda: phase(cluster, "ends") == "Succeeded")
    wait_for(lambda: not alive(first) and not alive(child))
    killed = family(cluster, "killed", "300")
    assert all(alive(process) for process in killed)
    cluster.http.delete(cluster.path("pods", "killed"), params=NOW)
    wait_for(lambda: not any(alive(process) for process in killed))


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_of_a_pod_outlives_the_cluster(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setitem(os.environ, "TMPDIR", str(temporary))
    with (
        embedded_cluster(tmp_path) as (kubeconfig, process),
        connected(kubeconfig, embedded=True) as cluster,
    ):
        running = family(cluster, "one", "300") + family(cluster, "two", "300")
        assert list(temporary.iterdir())
        watching = cluster.http.stream("GET", cluster.path("pods"), params={"watch": "true"})
        log_path, query = cluster.path("pods", "one", "log"), {"follow": "true"}
        following = cluster.http.stream("GET", log_path, params=query)
        with watching as events, following as lines:
            assert next(events.iter_lines())
            assert next(lines.iter_lines())
            process.popen.send_signal(number)
            code = process.popen.wait(20)
        assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)
        wait_for(lambda: not any(alive(found) for found in running))
        wait_for(lambda: list(temporary.iterdir()) == [])
        assert process.log.read_text().count("\n") == 1


def test_a_watch_from_a_forgotten_version_may_be_refused_by_status(tmp_path: Path) -> None:
    arguments = ("--history", "2", "--expired-watch", "status")
    with (
        embedded_cluster(tmp_path, *arguments) as (kubeconfig, _process),
        connected(kubeconfig, embedded=True) as cluster,
    ):
        for name in "abc":
            start(cluster, name, "true", schedulerName="nobody")
        query = {"watch": "true", "resourceVersion": "1"}
        refusal(cluster.http.get(cluster.path("pods"), params=query), 410, "Expired")


def test_a_watcher_that_is_overtaken_is_told(tmp_path: Path) -> None:
    """The history may roll over what a slow reader has not had yet."""
    with (
        embedded_cluster(tmp_path, "--history", "2") as (kubeconfig, _process),
        connected(kubeconfig, embedded=True) as cluster,
    ):
        version = cluster.http.get(cluster.path("pods")).json()["metadata"]["resourceVersion"]
        for name in "abc":
            start(cluster, name, "true", schedulerName="nobody")
        seen = cluster.events(version)
        assert [(event["type"], event["object"]["code"]) for event in seen] == [("ERROR", 410)]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", MODULE, "--port", port, "--kubeconfig", str(tmp_path / "k")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Address already in use" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "k").exists()


def test_a_kubeconfig_that_cannot_be_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", MODULE, "--kubeconfig", str(tmp_path / "none" / "k")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such file or directory" in done.stderr
    assert done.stderr.count("\n") == 1


def test_secrets_are_written_for_this_user_alone_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "TMPDIR", str(tmp_path))
    with (
        embedded_cluster(tmp_path) as (kubeconfig, _process),
        connected(kubeconfig, embedded=True) as cluster,
    ):
        secret = {"metadata": {"name": "s"}, "stringData": {"word": "hidden"}}
        cluster.http.post(cluster.path("secrets"), json=secret).raise_for_status()
        body = deepcopy(cluster.pod_template)
        body["metadata"] = {"name": "reads"}
        body["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "s"}}]
        body["spec"]["containers"][0] |= {
            "command": ["sh", "-c", "echo /run/secret/word; sleep 60"],
            "volumeMounts": [{"name": "v", "mountPath": "/run/secret"}],
        }
        cluster.http.post(cluster.path("pods"), json=body).raise_for_status()
        wait_for(lambda: phase(cluster, "reads") == "Running" and log(cluster, "reads"))
        file = Path(log(cluster, "reads").strip())
        assert file.read_text() == "hidden"
        assert file.stat().st_mode & 0o777 == 0o600
        directory_of_pod = file.parents[2]
        assert directory_of_pod.stat().st_mode & 0o777 == 0o700
        cluster.http.delete(cluster.path("pods", "reads"), params=NOW)
        wait_for(lambda: not file.exists())
