# SPDX-License-Identifier: Apache-2.0
"""K8, the messages' side: A stalls, is declared dead, and B adopts its tasks; A wakes with launches in hand.

Right: A sends no message of what B owns, takes no result of B's away, and reports nothing about them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from airflow.executors.base_executor import ExecutorConf
from airflow.providers.celery.executors.celery_executor_utils import create_celery_app
from airflow.utils.session import create_session

from dispatcher.compat import task_key
from dispatcher.domain.lifecycle import LaunchState
from tests.support import dispatching as run
from tests.support import rows
from tests.support import service_dispatching as on
from tests.support.celery_backend import messages

pytestmark = [pytest.mark.needs("redis"), pytest.mark.usefixtures("airflow_db", "redis_executors")]


@pytest.fixture
def a():
    with on.started_executor() as executor:
        yield executor


@pytest.fixture
def b():
    with on.started_executor() as executor:
        yield executor


def queue_one_of_each(executor, name: str) -> list[str]:
    """Queue a task and a callback; return the tokens."""
    with create_session(scoped=False) as session:
        callback_id = rows.make_callback(session).id
    run.queue_callback(executor, callback_id)
    (callback,) = on.launches_of(callback_id)
    return [run.queue_task(executor, task_id=name), callback.token]


def sent(broker: str) -> Counter:
    return Counter(
        one["headers"]["id"] for queue in ("default", "callbacks") for one in messages(broker, queue)
    )


def wake(executor) -> list:
    executor.dispatcher.adopt_soon()
    return [event for _ in range(3) for event in run.loop(executor).items()]


def test_k8_a_deposed_scheduler_sends_and_takes_nothing(a, b, redis_url):
    waiting = queue_one_of_each(a, "waits")
    failing = run.queue_task(a, task_id="fails")
    on.drive(a, lambda: sent(redis_url).total() == 3, "A has sent")
    assert run.claim(failing)
    # Issued and committed; A stalls before it comes to them.
    in_hand = queue_one_of_each(a, "in_hand")
    on.die(a)
    assert on.orphan_check(b) == 0
    tokens = {*waiting, failing, *in_hand}
    on.drive(b, lambda: sent(redis_url).keys() == tokens, "B sends what A has not sent")
    run.loop(b)
    messages_before = sent(redis_url)
    assert {messages_before[token] for token in in_hand} == {1}

    app = create_celery_app(ExecutorConf())
    app.backend.mark_as_failure(failing, RuntimeError("killed"))
    run.set_task(failing, last_heartbeat_at=rows.utcnow() - timedelta(hours=1))
    assert wake(a) == []
    assert sent(redis_url) == messages_before, "A has sent nothing more"
    assert app.backend.get_state(failing) == "FAILURE", "A has not taken the result away"
    assert a.slots_occupied == 0

    told = on.drive(b, lambda: run.launch_of(failing).state is LaunchState.FAILED, "B hears of it")
    told += run.loop(b).items()
    assert {(key, state) for key, (state, _) in told} == {(task_key(run.launch_of(failing)), "failed")}
    run.set_task(failing, state="up_for_retry")
    on.drive(b, lambda: run.launch_of(failing).settled_at, "it has settled")
    assert wake(a) == []
    assert {run.launch_of(token).scheduler_job_id for token in tokens} == {str(b.job_id)}
    app.close()
