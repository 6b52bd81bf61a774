# SPDX-License-Identifier: Apache-2.0
"""Logs of pods: what is shown of those that run, and the words where nothing can be shown."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest
from kubernetes.client import models as k8s

from dispatcher.backends.base import Sent
from dispatcher.domain.lifecycle import BackendName
from dispatcher.executor import HybridExecutor
from tests.support import fault_proxy
from tests.support.backend_harness import eventually, make_submission, submit
from tests.support.clusters import POD_TEMPLATE_VARIABLE
from tests.support.fault_proxy import kubeconfig_of
from tests.support.launches import add_launch, add_launch_of
from tests.support.rows import make_task_instance

pytestmark = pytest.mark.needs("kubernetes")

SCRIPT = r'printf "\033[31mrot\033[0m\n"; echo "$0 é 日本"; printf "\377\n"; while :; do sleep 0.2; done'


def send(backend, **changes):
    """Create a pod and return where it is."""
    submission = make_submission(**changes)
    sent = submit(backend, submission)[submission.token]
    assert isinstance(sent, Sent), sent
    return sent.external_id


def read(backend, external_id):
    messages, streams = backend.open_log(external_id)
    return messages, [line for lines in streams for line in lines]


def words(backend, external_id):
    """Return the message for a log that is not to be had."""
    (message,), lines = read(backend, external_id)
    assert lines == []
    assert "\n" not in message
    return message


def test_without_a_log_the_words_say_why(field, tmp_path):
    pod = send(field.backend())
    assert words(field.backend(job=None), pod) == f"Container base of pod {pod} has not written a log yet"
    assert f"Pod {field.namespace}/no-such-pod is gone" in words(
        field.backend(job=None), f"{field.namespace}/no-such-pod"
    )
    nobody = field.backend(job=None, through=field.proxy(as_user="nobody-in-particular"))
    assert "grant `get` on `pods/log`" in words(nobody, pod)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        config = tmp_path / "away.yaml"
        config.write_text(kubeconfig_of(f"http://127.0.0.1:{closed.getsockname()[1]}"), encoding="utf-8")
        away = words(field.backend(job=None, conf={"config_file": str(config)}), pod)
        assert "cannot be read at the moment: the API server cannot be reached" in away
    missing = field.backend(job=None, conf={"config_file": str(tmp_path / "none.yaml")})
    assert "no usable Kubernetes configuration" in words(missing, pod)


def test_a_log_that_breaks_off_says_so(field):
    proxy = field.proxy()

    def cut(exchange):
        exchange.begin(200, {"content-type": "text/plain"}, None)
        exchange.chunk(b"first\nsec")
        exchange.hang_up()

    proxy.on("GET", "/log", cut)
    _, lines = read(field.backend(job=None, through=proxy), f"{field.namespace}/pod")
    assert lines[0] == "first"
    assert lines[-1].startswith("The log breaks off here: ")


def test_a_container_that_waits_to_start_is_told_as_such(field):
    proxy = field.proxy()
    said = 'container "base" in pod "pod" is waiting to start: ContainerCreating'
    proxy.on("GET", "/log", fault_proxy.answer(400, said))
    told = words(field.backend(job=None, through=proxy), f"{field.namespace}/pod")
    assert told.startswith(f"Container base of pod {field.namespace}/pod has no log yet: ")
    assert said in told


@pytest.fixture
def executor_for(field, monkeypatch):
    """Return a function that makes an executor as the API server has it, on the test's cluster."""

    def make():
        for key, value in {
            "IN_CLUSTER": "False",
            "CONFIG_FILE": field.kubeconfig,
            "NAMESPACE": field.namespace,
            "POD_TEMPLATE_FILE": str(field.template),
        }.items():
            monkeypatch.setenv(f"AIRFLOW__KUBERNETES_EXECUTOR__{key}", value)
        return HybridExecutor()

    return make


def test_the_log_is_that_of_the_pod_the_ledger_names(executor_for, field, db_session):
    # Their labels begin alike, and are cut there; only the ledger tells them apart.
    pods = [
        send(field.backend(), dag_id=f"{'d' * 240}{end}", task_id=f"{'t' * 240}{end}") for end in ("a", "b")
    ]
    executor = executor_for()
    for pod in pods:
        launch = add_launch(db_session, backend=BackendName.KUBERNETES, external_id=pod)
        db_session.commit()
        ti = SimpleNamespace(external_executor_id=launch.token)
        (message,), lines = executor.get_task_log(ti, 1)
        assert pod in message
        assert lines == []


def test_what_does_not_belong_to_this_try_is_not_shown(executor_for, field, db_session):
    pod = send(field.backend())
    launch = add_launch(db_session, backend=BackendName.KUBERNETES, external_id=pod, try_number=2)
    unknown = add_launch(db_session, backend=BackendName.KUBERNETES, external_id=None)
    db_session.commit()
    executor = executor_for()
    (message,), _ = executor.get_task_log(SimpleNamespace(external_executor_id=launch.token), 1)
    assert message == "The pod that runs now belongs to try 2, not to try 1"
    (message,), _ = executor.get_task_log(SimpleNamespace(external_executor_id=unknown.token), 1)
    assert "not recorded yet" in message


def test_the_settings_of_the_launchs_team_count(executor_for, field, db_session, monkeypatch):
    """Airflow asks its default executor, which is of no team."""
    pod = send(field.backend())
    launch = add_launch(db_session, backend=BackendName.KUBERNETES, external_id=pod, team_name="blue")
    db_session.commit()
    executor = executor_for()
    ti = SimpleNamespace(external_executor_id=launch.token)
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", "/no/such/file")
    monkeypatch.setenv("AIRFLOW__BLUE___KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
    monkeypatch.setenv("AIRFLOW__BLUE___KUBERNETES_EXECUTOR__CONFIG_FILE", field.kubeconfig)
    assert "has not written a log yet" in executor.get_task_log(ti, 1)[0][0]


@pytest.mark.needs("node")
@pytest.mark.skipif(POD_TEMPLATE_VARIABLE not in os.environ, reason=f"{POD_TEMPLATE_VARIABLE} is not set")
def test_fault_8_the_log_page_shows_a_running_pod_whatever_name_the_executor_has(
    executor_for, field, db_session
):
    from airflow.utils.log.log_reader import TaskLogReader

    containers = [
        k8s.V1Container(name="base", command=["sh", "-c", SCRIPT, "zero"], args=[]),
        k8s.V1Container(name="sidecar", image="hostfs:local", image_pull_policy="Never", command=["true"]),
    ]
    override = k8s.V1Pod(spec=k8s.V1PodSpec(containers=containers))
    backend = field.backend(conf={"pod_template_file": os.environ[POD_TEMPLATE_VARIABLE]})
    pod = send(backend, dag_id="日本語のタスク", executor_config={"pod_override": override})
    shown = ["rot", "zero é 日本", "\N{REPLACEMENT CHARACTER}"]
    eventually(lambda: read(backend, pod)[1] == shown, "it has spoken", seconds=90)

    ti = make_task_instance(db_session, state="running")
    add_launch_of(db_session, ti, backend=BackendName.KUBERNETES, external_id=pod)
    db_session.commit()
    assert executor_for().get_task_log(ti, 1)[1] == ["\n".join(shown)]
    for name in (None, "HybridExecutor", "dispatcher.executor.HybridExecutor"):
        ti.executor = name
        stream, metadata = TaskLogReader().read_log_chunks(ti, 1, {})
        page = [line.event for line in stream]
        assert [line for line in page if line in shown] == shown
        assert any(f"container base of pod {pod}" in line for line in page)
        assert not metadata["end_of_log"]
    field.kubelet.delete(pod.partition("/")[2])
