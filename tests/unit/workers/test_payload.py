# SPDX-License-Identifier: Apache-2.0
"""Reading a workload never shows what is in it."""

from __future__ import annotations

import json
import traceback

import pytest

from tests.support.workloads import make_callback_workload, make_task_workload
from workers import pod
from workers.outcomes import InvalidWorkloadError
from workers.payload import read_workload

SECRET = "eyJ.secret.token"


@pytest.mark.parametrize("workload", [make_task_workload, lambda: make_callback_workload("os.getpid")])
def test_what_an_executor_sends_is_read(workload):
    sent = workload()

    read = read_workload(sent.model_dump_json())

    assert (read.type, read.token, read.key) == (sent.type, sent.token, sent.key)


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ("", "payload"),
        ("no json", "payload"),
        ("[]", "payload"),
        (json.dumps({"type": "RunTrigger", "token": SECRET}), "payload"),
        (
            json.dumps({"type": "ExecuteTask", "token": SECRET, "ti": {"id": SECRET}}),
            "ExecuteTask.ti.task_id",
        ),
    ],
)
def test_what_is_no_workload_is_named_without_its_content(payload, named):
    with pytest.raises(InvalidWorkloadError, match=named) as caught:
        read_workload(payload)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_pod_says_in_one_line_that_there_is_no_workload(capsys, tmp_path):
    missing = tmp_path / "missing.json"
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"type": "ExecuteTask", "token": SECRET}))

    for argv in (["--json-path", str(missing)], ["--json-path", str(wrong)], ["--json-string", "{"]):
        assert pod.main(argv) == 2
        error = capsys.readouterr().err
        assert error.startswith("Cannot read the workload: ")
        assert error.count("\n") == 1
        assert SECRET not in error


@pytest.mark.parametrize("argv", [[], ["--json-path", "a", "--json-string", "b"], ["--other"]])
def test_a_pod_takes_exactly_one_source(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        pod.main(argv)

    assert caught.value.code == 2
    assert "usage: python -m workers.pod" in capsys.readouterr().err
