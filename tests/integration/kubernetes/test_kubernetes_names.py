# SPDX-License-Identifier: Apache-2.0
"""Odd names on a real API server: each pod is made, and each is found again and no other."""

from __future__ import annotations

import pytest

from dispatcher.backends.base import Artefact, Sent
from tests.support.backend_harness import eventually, make_submission, submit

pytestmark = pytest.mark.needs("kubernetes")

RUN = "manual__2026-01-01T00:00:00"
LOOK_ALIKES = [
    *({"dag_id": f"{'d' * 249}{end}", "task_id": f"{'group.' * 41}{end}"} for end in "ab"),
    *({"dag_id": dag_id} for dag_id in ("tâche", "tache")),
    *({"task_id": task_id} for task_id in ("日本語のタスク", "日本語のタスグ")),
    *({"dag_id": dag_id, "task_id": dag_id} for dag_id in ("...", "___", "-.-")),
    *({"run_id": run_id} for run_id in (f"{RUN}+00:00", f"{RUN}:00:00")),
    *({"run_id": run_id} for run_id in ("a/b 'c'", 'a/b "c"', "a/bc")),
    *({"run_id": f"{'r' * 249}{end}"} for end in "ab"),
    *({"map_index": map_index} for map_index in (1, 11)),
    *({"try_number": try_number} for try_number in (1, 2)),
]


def test_faults_88_to_90_look_alikes_are_kept_apart(field):
    submissions = [make_submission(**ids) for ids in LOOK_ALIKES]
    backend = field.backend()
    results = submit(backend, *submissions)
    assert all(isinstance(result, Sent) for result in results.values()), results
    places = {token: result.external_id for token, result in results.items()}
    for pod in field.kubelet.pods():
        (one,) = [one for one in submissions if pod.metadata.name.endswith(one.token)]
        annotations = pod.metadata.annotations
        assert (annotations["dag_id"], annotations["task_id"], annotations["run_id"]) == (
            one.dag_id,
            one.task_id,
            one.run_id,
        )
        assert places[one.token] in backend.open_log(places[one.token])[0][0]

    # Another scheduler takes them over, and hears of each ending by its own exit code.
    adopting = field.backend(job="2")
    adopting.watch([Artefact(one.token, one.kind, places[one.token]) for one in submissions])
    ended, stopped = submissions[::2], submissions[1::2]
    for number, one in enumerate(ended):
        field.kubelet.end(places[one.token].partition("/")[2], 100 + number)
    told = {}

    def all_told():
        told.update({one.token: one.reason for one in adopting.observe()})
        return len(told) >= len(ended)

    eventually(all_told, "all endings")
    assert told == {
        one.token: f"container base: exit code {100 + number}" for number, one in enumerate(ended)
    }

    # A creation whose answer was lost left no name of a pod.
    for one in stopped:
        adopting.revoke([Artefact(one.token, one.kind)])
    kept = {places[one.token].partition("/")[2] for one in ended}
    eventually(lambda: {pod.metadata.name for pod in field.kubelet.pods()} == kept, "only those are left")
