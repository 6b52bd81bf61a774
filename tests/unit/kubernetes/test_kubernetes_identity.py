# SPDX-License-Identifier: Apache-2.0
"""Names, labels and annotations."""

from __future__ import annotations

import re
import uuid

import pytest
from airflow import __version__ as airflow_version
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.backends.kubernetes import identity
from dispatcher.backends.kubernetes.identity import Owner
from dispatcher.domain.workload import WorkloadKind
from tests.support.backend_harness import make_submission

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
OWNER = Owner("17", "abcdef0123")

ODD_IDS = [
    "x" * 250,
    "a.b.c__d--e",
    "-leading-and-trailing-",
    "...",
    "___",
    "日本語のタスク",
    "tâche_été",
    "задача",
    "🚀",
    "UPPER Case",
]


def pod_with(labels: dict[str, str], annotations: dict[str, str]) -> dict[str, object]:
    metadata = {"name": "n", "namespace": "ns", "uid": "u", "labels": labels, "annotations": annotations}
    return {"metadata": metadata}


def test_all_of_a_task():
    submission = make_submission(dag_id="my_dag", task_id="my_task", run_id="manual__1", map_index=3)
    assert identity.pod_name(submission) == f"my-dag-my-task-{submission.token}"
    assert identity.make_labels(submission, OWNER) == {
        "airflow-executor": "hybrid-dispatcher",
        "airflow-deployment": "abcdef0123",
        "airflow-worker": "hybrid-17",
        "airflow-workload-type": "task",
        "airflow-launch-token": submission.token,
        "dag_id": "my_dag",
        "task_id": "my_task",
        "run_id": "manual__1",
        "try_number": "1",
        "map_index": "3",
        "airflow_version": airflow_version.replace("+", "-"),
    }
    assert identity.make_annotations(submission) == {
        "airflow-workload-type": "task",
        "airflow-launch-token": submission.token,
        "dag_id": "my_dag",
        "task_id": "my_task",
        "run_id": "manual__1",
        "try_number": "1",
        "map_index": "3",
    }


def test_all_of_a_callback():
    submission = make_submission(WorkloadKind.CALLBACK, dag_id="my_dag", run_id=None)
    assert identity.pod_name(submission) == f"callback-my-dag-{submission.token}"
    labels = identity.make_labels(submission, OWNER)
    assert labels["airflow-workload-type"] == "callback"
    assert not labels.keys() & {"task_id", "run_id", "try_number", "map_index"}
    nameless = make_submission(WorkloadKind.CALLBACK, dag_id=None, run_id=None)
    assert identity.pod_name(nameless) == f"callback-{nameless.token}"


def test_all_of_a_connection_test():
    submission = make_submission(WorkloadKind.TEST_CONNECTION)
    assert identity.pod_name(submission) == f"test-connection-{submission.token}"
    labels = identity.make_labels(submission, OWNER)
    assert labels["airflow-workload-type"] == "test_connection"
    assert "airflow-launch-token" not in labels


def test_a_team_has_a_label():
    labels = identity.make_labels(make_submission(), Owner("1", "d", "blue team"))
    assert labels["airflow-team"].startswith("blueteam-")


@pytest.mark.parametrize("odd", ODD_IDS)
def test_faults_88_and_89_odd_ids_make_a_legal_pod_and_stay_exact(odd):
    submission = make_submission(dag_id=odd, task_id=odd, run_id=f"manual__{odd}+00:00 'x'")
    name = identity.pod_name(submission)
    assert len(name) <= 63
    assert NAME.fullmatch(name)
    assert name.endswith(f"-{submission.token}")
    labels = identity.make_labels(submission, OWNER)
    for value in labels.values():
        assert len(value) <= 63
        assert LABEL.fullmatch(value), value
    annotations = identity.make_annotations(submission)
    assert annotations["dag_id"] == annotations["task_id"] == odd
    assert annotations["run_id"] == submission.run_id
    found = identity.read_identity(pod_with(labels, annotations))
    assert found is not None
    assert (found.token, found.kind, found.external_id) == (submission.token, WorkloadKind.TASK, "ns/n")


@given(st.text(min_size=1, max_size=260))
def test_any_text_makes_a_legal_label(text):
    value = identity.label_value(text)
    assert len(value) <= 63
    assert LABEL.fullmatch(value)


IDS = st.text(max_size=260)


@given(dag_id=IDS, task_id=IDS, run_id=IDS)
def test_any_ids_make_a_legal_pod_that_tells_them_exactly(dag_id, task_id, run_id):
    submission = make_submission(dag_id=dag_id, task_id=task_id, run_id=run_id)
    name = identity.pod_name(submission)
    assert len(name) <= 63
    assert NAME.fullmatch(name)
    assert name.endswith(f"-{submission.token}")
    labels = identity.make_labels(submission, OWNER)
    assert all(len(value) <= 63 and LABEL.fullmatch(value) for value in labels.values()), labels
    annotations = identity.make_annotations(submission)
    assert [annotations[key] for key in ("dag_id", "task_id", "run_id")] == [dag_id, task_id, run_id]
    found = identity.read_identity(pod_with(labels, annotations))
    assert found is not None
    assert found.token == submission.token


@pytest.mark.parametrize("run_id", ["manual__2026-01-01T00:00:00+00:00", "a b", "x" * 250, "plain"])
def test_fault_90_labels_are_the_ones_that_stock_tooling_selects_by(run_id):
    submission = make_submission(dag_id="d/a", task_id="t" * 80, run_id=run_id, map_index=2, try_number=3)
    stock = PodGenerator.build_labels_for_k8s_executor_pod(
        dag_id="d/a", task_id="t" * 80, try_number=3, map_index=2, run_id=run_id
    )
    del stock["kubernetes_executor"]
    ours = identity.make_labels(submission, OWNER)
    assert {key: ours[key] for key in stock} == stock


def test_two_run_ids_that_differ_in_illegal_characters_have_two_labels():
    labels = [
        identity.make_labels(make_submission(run_id=run_id), OWNER)["run_id"] for run_id in ("a+b", "a:b")
    ]
    assert labels[0] != labels[1]


def test_the_selector_leaves_out_other_deployments_and_what_is_done():
    assert identity.selector(Owner("17", "my deployment")) == (
        f"airflow-executor=hybrid-dispatcher,"
        f"airflow-deployment={identity.label_value('my deployment')},!airflow-team,!airflow-launch-done"
    )
    token = str(uuid.uuid4())
    chosen = identity.selector_of_launch(OWNER, token)
    assert chosen == f"{identity.selector(OWNER)},airflow-launch-token={token}"


def test_the_selector_of_a_team_leaves_out_the_others():
    chosen = identity.selector(Owner("17", "d", "blue"))
    assert chosen == (
        "airflow-executor=hybrid-dispatcher,airflow-deployment=d,airflow-team=blue,!airflow-launch-done"
    )


def test_the_sender_is_read_from_its_label():
    made = pod_with(identity.make_labels(make_submission(), OWNER), {})
    assert identity.read_sender(made) == "17"


@pytest.mark.parametrize("labels", [{}, {"airflow-worker": "17"}, {"airflow-worker": "hybrid-"}])
def test_a_pod_that_names_no_sender(labels):
    assert identity.read_sender(pod_with(labels, {})) is None


def test_an_external_id_is_taken_apart():
    assert identity.split_external_id("ns/pod") == ("ns", "pod")
