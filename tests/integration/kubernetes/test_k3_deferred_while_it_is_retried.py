# SPDX-License-Identifier: Apache-2.0
"""K3: a task defers, resumes and is queued again while an old copy of its first launch is still retried.

Right: the old copy is dropped.
"""

from __future__ import annotations

import pytest

from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import fault_proxy
from tests.support import field_dispatching as on
from tests.support.service_dispatching import queue_again

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.usefixtures("airflow_db")]


def test_the_old_copy_is_dropped(field):
    proxy = field.proxy()
    proxy.on("POST", "/pods", fault_proxy.swallow)
    executor = on.started_executor(field, through=proxy)
    first = run.queue_task(executor, queue=on.KUBERNETES_QUEUE)
    executor.drive(lambda: field.kubelet.pods(first) and executor.task_queue, "it is to be tried again")
    assert run.launch_of(first).external_id is None

    # Meanwhile its pod runs, and the task defers and resumes.
    on.start_and_claim(field, first)
    run.set_task(first, state="deferred")
    second = queue_again(executor, run.launch_of(first).subject_id)
    executor.drive(lambda: run.launch_of(second).external_id, "the second launch is sent")
    assert run.launch_of(first).state is LaunchState.SUPERSEDED
    assert proxy.count("POST", "/pods") == 2, "the first one is not sent again"
    assert not run.claim(first, "another pod")

    field.kubelet.end(field.kubelet.name_of(first), 0)
    executor.drive(lambda: on.settled(first), "the end of the first is dealt with")
    executor.drive(lambda: not field.kubelet.pods(first), "its pod is taken away")
    assert len(field.kubelet.pods(second)) == 1
    assert executor.told == []
    assert len(executor.running) == 1
