# SPDX-License-Identifier: Apache-2.0
"""C5: the scheduler dies right after the send, over a real broker.

Right: adopted, exactly one run. The id is fixed before the send and committed with QUEUED, so there is no
moment at which a message is there and nobody knows it (known fault 17), and no event that carries the id and
could be skipped (known fault 18).
"""

from __future__ import annotations

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from dispatcher.dispatch.submit import Submitter
from dispatcher.domain.lifecycle import LaunchState
from tests.support import service_dispatching as run
from tests.support.celery_backend import messages
from tests.support.dispatching import claim, launch_of, loop, queue_task

pytestmark = [pytest.mark.needs("redis"), pytest.mark.usefixtures("airflow_db", "redis_executors")]


class KilledError(BaseException):
    """The scheduler is killed here."""


def kill(*_args):
    raise KilledError


def test_fault_17_killed_between_the_send_and_the_note_of_it(redis_url, monkeypatch):
    with run.started_executor() as dead, run.started_executor() as live:
        token = queue_task(dead, queue=run.PARKED)
        with monkeypatch.context() as patch:
            patch.setattr(Submitter, "_note", kill)
            with pytest.raises(KilledError):
                run.drive(dead, lambda: False, "it is killed")
        assert [message["headers"]["id"] for message in messages(redis_url, run.PARKED)] == [token]
        run.die(dead)

        assert run.orphan_check(live) == 0, "nothing is reset"
        loop(live)
        loop(live)

        sent = [message["headers"]["id"] for message in messages(redis_url, run.PARKED)]
        assert set(sent) == {token}
        assert claim(token, "nonce:first")
        assert not claim(token, "nonce:second"), "however often it was sent, it runs once"
        assert loop(live) == {}
        assert live.slots_occupied == 1
        assert launch_of(token).scheduler_job_id == str(live.job_id)


def test_fault_18_the_id_does_not_come_by_an_event(redis_url):
    with run.started_executor() as dead, run.started_executor() as live:
        token = queue_task(dead, queue=run.PARKED)
        told = [loop(dead) for _ in range(3)]
        assert told == [{}, {}, {}], "there is no event to skip"
        with create_session(scoped=False) as session:
            ids = session.scalars(select(TaskInstance.external_executor_id)).all()
        assert ids == [token]
        run.die(dead)

        assert run.orphan_check(live) == 0, "nothing is reset"
        loop(live)
        assert launch_of(token).state is LaunchState.SUBMITTED
        assert live.slots_occupied == 1
